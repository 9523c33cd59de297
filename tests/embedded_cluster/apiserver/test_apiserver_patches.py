"""The four sorts of patches over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from embedded_cluster.apiserver.builtin_rule import schema_of
from embedded_cluster.apiserver.patch import json_patch, strategic
from embedded_cluster.apiserver.status import StatusError
from tests.embedded_cluster.apiserver.world import Watching, configmap, pod, toy
from volcano_elastic.kube.client import ApiError, Client, Conflict, Invalid
from volcano_elastic.kube.resource import CONFIGMAPS, PODS, SERVICES, Object, Resource


async def test_a_patch_that_changes_nothing_makes_no_event(client: Client, namespace: str) -> None:
    first = await client.create(CONFIGMAPS, configmap(namespace, "one", a="b"))
    version = first["metadata"]["resourceVersion"]
    watching = Watching(client, CONFIGMAPS, namespace, resource_version=version)
    again = await client.patch(CONFIGMAPS, "one", namespace, {"data": {"a": "b"}})
    assert again["metadata"]["resourceVersion"] == version
    await client.replace(CONFIGMAPS, first)
    await client.create(CONFIGMAPS, configmap(namespace, "two"))
    assert await watching.names(1) == [("ADDED", "two")]


async def test_json_patch_with_test(client: Client, namespace: str) -> None:
    obj = configmap(namespace, "one", a="b")
    obj["metadata"]["annotations"] = {"w": "z"}
    made = await client.create(CONFIGMAPS, obj)
    version = made["metadata"]["resourceVersion"]
    patched = await client.patch(
        CONFIGMAPS,
        "one",
        namespace,
        [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/metadata/finalizers", "value": ["example.org/f"]},
            {"op": "add", "path": "/metadata/annotations/x~1y", "value": "z"},
            {"op": "remove", "path": "/data/a"},
        ],
        patch_type="json",
    )
    assert patched["metadata"]["annotations"] == {"w": "z", "x/y": "z"}
    assert "data" not in patched
    operation = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    with pytest.raises(Invalid):
        await client.patch(CONFIGMAPS, "one", namespace, [operation], patch_type="json")
    operation = {"op": "remove", "path": "/data/none"}
    with pytest.raises(Invalid):
        await client.patch(CONFIGMAPS, "one", namespace, [operation], patch_type="json")


@pytest.mark.parametrize("op", ["add", "replace"])
def test_a_json_patch_says_the_same_each_time_it_is_tried(op: str) -> None:
    operations = [{"op": op, "path": "/a", "value": []}, {"op": "add", "path": "/a/-", "value": 1}]
    assert [json_patch({}, operations) for _ in range(2)] == [{"a": [1]}, {"a": [1]}]


def test_what_moves_is_gone_before_its_new_place_is_looked_for() -> None:
    move = [{"op": "move", "from": "/0", "path": "/0/a/x"}]
    assert json_patch([{"b": 1}, {"a": {}}], move) == [{"a": {"x": {"b": 1}}}]
    with pytest.raises(StatusError, match="nothing at 'a'"):
        json_patch([{"a": {}}, {}], move)


def test_lists_are_merged_by_their_type_not_by_their_name() -> None:
    hooks: Object = {"webhooks": [{"name": "a", "url": "u"}, {"name": "b"}]}
    change = {"webhooks": [{"name": "a", "timeoutSeconds": 3}, {"name": "b", "$patch": "delete"}]}
    merged = strategic(hooks, change, schema_of("MutatingWebhookConfiguration"))
    assert merged == {"webhooks": [{"name": "a", "url": "u", "timeoutSeconds": 3}]}
    account = {"secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "a"}]}
    both = strategic(
        account, {field: [{"name": "b"}] for field in account}, schema_of("ServiceAccount")
    )
    assert both == {"secrets": [{"name": "b"}, {"name": "a"}], "imagePullSecrets": [{"name": "b"}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"$deleteFromPrimitiveList/args": 7}, "expected a list"),
        ({"$deleteFromPrimitiveList/name": ["a"]}, "expected a list, and one at name"),
        ({"env": [{"name": "A"}, 7]}, "an element of env has no name"),
        ({"env": [{"value": "a"}]}, "an element of env has no name"),
        ({"$patch": "odd"}, "expected replace, merge or delete"),
    ],
)
def test_a_strategic_patch_that_is_none_is_refused(change: Object, said: str) -> None:
    with pytest.raises(StatusError, match=said):
        strategic({"name": "a", "args": ["x"], "env": []}, change, schema_of("Container"))


def test_directives_in_lists_hold_for_their_list() -> None:
    had: Object = {"env": [{"name": name, "value": "1"} for name in "ABA"], "args": ["x", "y"]}
    change = {"env": [{"$patch": "delete", "name": "B"}, {"$patch": "delete", "name": "none"}]}
    assert strategic(had, change, schema_of("Container"))["env"] == [had["env"][0], had["env"][2]]
    change = {"env": [{"$patch": "replace"}, {"name": "C", "value": None}]}
    assert strategic(had, change, schema_of("Container"))["env"] == [{"name": "C"}]
    change = {"$deleteFromPrimitiveList/args": ["x"]}
    assert strategic(had, change, schema_of("Container"))["args"] == ["y"]


async def test_strategic_merge_knows_the_lists_keys(client: Client, namespace: str) -> None:
    await client.create(PODS, pod(namespace, "one"))
    status = {"conditions": [{"type": "Ready", "status": "False"}], "phase": "Running"}
    for body in (status, {"conditions": [{"type": "Ready", "status": "True"}]}):
        await client.patch(
            PODS,
            "one",
            namespace,
            {"status": body},
            subresource="status",
            patch_type="strategic",
        )
    more = {"conditions": [{"type": "Initialized", "status": "True"}]}
    patched = await client.patch(
        PODS, "one", namespace, {"status": more}, subresource="status", patch_type="strategic"
    )
    found = {one["type"]: one["status"] for one in patched["status"]["conditions"]}
    assert found == {"Ready": "True", "Initialized": "True"}
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    patched = await client.patch(PODS, "one", namespace, image, patch_type="strategic")
    assert [c["image"] for c in patched["spec"]["containers"]] == ["other"]
    drop = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    patched = await client.patch(
        PODS, "one", namespace, drop, subresource="status", patch_type="strategic"
    )
    assert [one["type"] for one in patched["status"]["conditions"]] == ["Initialized"]


async def test_apply_creates_merges_and_removes_what_the_manager_dropped(
    client: Client, namespace: str, toys: Resource
) -> None:
    def configuration(**spec: Any) -> Object:
        return {"apiVersion": toys.api_version, "kind": "Toy", **toy(namespace, "one", **spec)}

    body = configuration(colour="blue", parts=[{"name": "a", "count": 1}, {"name": "b"}])
    made = await client.patch(toys, "one", namespace, body, patch_type="apply")
    assert made["spec"]["parts"] == [{"name": "a", "count": 1}, {"name": "b", "count": 7}]
    same = await client.patch(toys, "one", namespace, body, patch_type="apply")
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    extra = [{"op": "add", "path": "/spec/parts/-", "value": {"name": "c", "count": 3}}]
    await client.patch(toys, "one", namespace, extra, patch_type="json")
    body = configuration(parts=[{"name": "a", "count": 2}])
    made = await client.patch(toys, "one", namespace, body, patch_type="apply")
    assert {part["name"]: part["count"] for part in made["spec"]["parts"]}["a"] == 2
    assert {part["name"] for part in made["spec"]["parts"]} >= {"a", "c"}
    assert made["spec"]["colour"] == "red", "dropped by its manager, so the default is back"
    with pytest.raises(Conflict, match="conflict with"):
        await client.request(
            "PATCH",
            toys.path(namespace, "one"),
            body=configuration(size=4),
            params={"fieldManager": "somebody-else"},
            content_type="application/apply-patch+yaml",
        )


async def test_an_apply_keeps_what_others_are_said_to_have_written(
    client: Client, namespace: str
) -> None:
    by = {"manager": "other", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    obj = configmap(namespace, "restored", a="b")
    obj["metadata"]["managedFields"] = [by, by | {"subresource": "status"}]
    made = await client.create(CONFIGMAPS, obj)
    before = made["metadata"]["managedFields"]
    body = configmap(namespace, "restored", c="d") | {"apiVersion": "v1", "kind": "ConfigMap"}
    applied = await client.patch(CONFIGMAPS, "restored", namespace, body, patch_type="apply")
    assert len(before) == 2 and applied["metadata"]["managedFields"][:-1] == before


async def test_applied_ports_are_told_apart_by_number_and_protocol(
    client: Client, namespace: str
) -> None:
    def service(*ports: Object) -> Object:
        meta = {"name": "one", "namespace": namespace}
        return {"metadata": meta, "spec": {"clusterIP": "None", "ports": list(ports)}}

    tcp: Object = {"name": "a", "port": 80}
    udp: Object = {"name": "b", "port": 80, "protocol": "UDP"}
    for ports in ([tcp, udp], [tcp | {"protocol": "TCP"}]):
        body = {"apiVersion": "v1", "kind": "Service", **service(*ports)}
        made = await client.patch(SERVICES, "one", namespace, body, patch_type="apply")
        found = [(port["name"], port["protocol"]) for port in made["spec"]["ports"]]
        assert found == [(port["name"], port.get("protocol", "TCP")) for port in ports]
    odd = body | {"odd": 1}
    with pytest.raises(ApiError, match='unknown field "odd"'):
        await client.patch(SERVICES, "one", namespace, odd, patch_type="apply")


async def test_a_patch_that_copies_itself_ever_larger_is_refused(
    client: Client, namespace: str
) -> None:
    await client.create(CONFIGMAPS, configmap(namespace, "one", a="x" * 1000))
    doubled = [{"op": "copy", "from": "", "path": f"/metadata/f{n}"} for n in range(40)]
    for operations, why in ((doubled, "copy at most"), (doubled[:1] * 10_001, "10000 operations")):
        with pytest.raises(ApiError, match=why) as caught:
            await client.patch(CONFIGMAPS, "one", namespace, operations, patch_type="json")
        assert caught.value.code == 413


def test_long_lists_are_merged_element_by_element() -> None:
    had = {"finalizers": [f"a/{number}" for number in range(20_000)]}
    change = {"finalizers": [f"b/{number}" for number in range(20_000)]}
    merged = strategic(had, change, schema_of("ObjectMeta"))
    assert len(merged["finalizers"]) == 40_000


async def test_an_applied_selector_is_one_value(client: Client, namespace: str) -> None:
    meta = {"name": "one", "namespace": namespace}
    spec = {"clusterIP": "None", "selector": {"a": "b"}}
    await client.create(SERVICES, {"metadata": meta, "spec": spec})
    body = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
    body["spec"] = {"selector": {"c": "d"}}
    made = await client.patch(SERVICES, "one", namespace, body, patch_type="apply")
    assert made["spec"]["selector"] == {"c": "d"}
