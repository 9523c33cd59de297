"""CRDs, and the objects of their kinds."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from embedded_cluster.apiserver import cel, patch
from embedded_cluster.apiserver.builtin import NAMESPACE
from embedded_cluster.apiserver.custom_resource import kinds_of
from embedded_cluster.apiserver.request import Target, WriteOptions
from embedded_cluster.apiserver.rest import Rest
from embedded_cluster.apiserver.schema import causes, prune
from embedded_cluster.apiserver.store import Store
from tests.embedded_cluster.apiserver.world import OLD_TOYS, configmap, gone, toy, toy_crd, until
from volcano_elastic.kube.client import ApiError, Client, Invalid, NotFound
from volcano_elastic.kube.resource import CONFIGMAPS, CRDS, Object, Resource


async def test_a_crd_is_served_at_once(client: Client, namespace: str, toys: Resource) -> None:
    crd = await client.get(CRDS, "toys.test.example.org")
    assert {one["type"]: one["status"] for one in crd["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    made = await client.create(toys, toy(namespace, "one", parts=[{"name": "a"}]))
    assert made["spec"]["replicas"] == 1 and made["spec"]["colour"] == "red"
    assert made["spec"]["parts"] == [{"name": "a", "count": 7}]
    assert made["metadata"]["generation"] == 1
    old = await client.get(OLD_TOYS, "one", namespace)
    assert old["apiVersion"] == "test.example.org/v1beta1"


async def test_unknown_fields_are_pruned_unless_kept(
    client: Client, namespace: str, toys: Resource
) -> None:
    obj = toy(namespace, "one", typo=1, free={"any": {"thing": 1}})
    made = await client.create(toys, obj)
    assert "typo" not in made["spec"] and made["spec"]["free"] == {"any": {"thing": 1}}
    with pytest.raises(ApiError, match=r'strict decoding error: unknown field "spec.typo"'):
        await client.request(
            "POST", toys.path(namespace), body=obj, params={"fieldValidation": "Strict"}
        )


def test_a_text_that_is_too_short_is_shown_a_list_is_counted() -> None:
    (short,) = causes("a", {"minLength": 2}, "spec.code")
    (few,) = causes([7], {"minItems": 2}, "spec.parts")
    assert 'Invalid value: "a": spec.code in body should be at least 2 chars' in short.message
    assert "Invalid value: 1: spec.parts in body should be at least 2 items" in few.message


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (r"^(a+)+$", "a" * 60 + "b", False),
        (r"^a$", "a\n", False),
        (r"^\d$", "٣", False),
        (r"^\pL$", "ä", True),
    ],
)
def test_patterns_are_those_of_re2(pattern: str, text: str, fits: bool) -> None:
    assert (not [*causes(text, {"pattern": pattern}, "spec.code")]) is fits


@pytest.mark.parametrize("extra", [True, {}, {"type": "integer"}])
def test_what_additional_properties_allow_is_kept(extra: Any) -> None:
    assert prune({"a": 1}, {"type": "object", "additionalProperties": extra}) == []
    assert prune({"a": 1}, {"type": "object", "additionalProperties": False}) == ["a"]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"type": None}, r"spec\]\.type: Required value"),
        ({"type": "null"}, r"spec\]\.type: Unsupported value"),
        ({"type": "array", "items": None}, r"items: Required value"),
        ({"type": "string", "default": 7}, r"default: Invalid value"),
        ({"type": "string", "pattern": "(", "default": "a"}, r"pattern: Invalid value"),
        ({"type": "object", "x-kubernetes-validations": [{}]}, r"rule: Required value"),
        ({"type": "object", "additionalProperties": {"type": 7}}, "expected string, found a int"),
        ({"type": "string", "enum": "red"}, r"enum: expected \[any\], found a str"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "is not supported"),
    ],
)
async def test_an_odd_schema_is_refused(client: Client, odd: Object, said: str) -> None:
    crd = toy_crd()
    crd["metadata"]["name"], crd["spec"]["names"]["plural"] = "odd.test.example.org", "odd"
    root = {"type": "object", "properties": {"spec": odd}}
    crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": root}
    with pytest.raises(ApiError, match=said):
        await client.create(CRDS, crd)


async def test_nulls_in_a_schema_say_nothing(client: Client) -> None:
    crd = toy_crd()
    crd["metadata"]["name"], crd["spec"]["names"]["plural"] = "null.test.example.org", "null"
    spec = {"type": "object", "properties": None, "required": None, "additionalProperties": None}
    choice = {"type": "string", "enum": ["a", None], "pattern": None, "nullable": True}
    root = {"type": "object", "properties": {"spec": spec, "choice": choice}}
    for version in crd["spec"]["versions"]:
        version["schema"] = {"openAPIV3Schema": root}
    made = await client.create(CRDS, crd)
    kept = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert kept["spec"] == {"type": "object"}
    assert kept["choice"] == {"type": "string", "enum": ["a", None], "nullable": True}
    await client.delete(CRDS, "null.test.example.org")


def test_long_elements_that_begin_alike_are_two() -> None:
    items = ["a" * 300 + end for end in "bc"]
    assert not list(causes(items, {"x-kubernetes-list-type": "set"}, "spec.set"))
    assert len(list(causes(items * 2, {"x-kubernetes-list-type": "set"}, "spec.set"))) == 2


def test_what_an_element_was_is_found_without_a_look_at_all_others() -> None:
    class Element(dict[str, Any]):
        looks = 0

        def get(self, *key: Any) -> Any:
            Element.looks += 1
            return super().get(*key)

    keyed = {
        "type": "array",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "less"}],
        },
    }
    old = [Element(name=f"n{number}", size=number) for number in range(500)]
    new = [{**one, "size": 7} for one in reversed(old)]
    assert len(cel.causes(new, old, keyed, [])) == 500 - 8
    assert Element.looks <= 2 * 500


def test_a_patch_by_a_version_that_knows_less_leaves_what_is_stored_alone() -> None:
    crd = toy_crd()
    less = {"spec": {"type": "object", "properties": {"new": {"type": "string", "default": "n"}}}}
    crd["spec"]["versions"][1]["schema"] = {
        "openAPIV3Schema": {"type": "object", "properties": less}
    }
    new, old = kinds_of(crd)
    rest = Rest(Store(revision=1), lambda: datetime.now(UTC), random.Random(1))
    rest.create(NAMESPACE, "", {"metadata": {"name": "default"}}, WriteOptions())
    stored = rest.create(new, "default", toy("default", "one", code="abc"), WriteOptions())
    labels, options = {"metadata": {"labels": {"a": "b"}}}, WriteOptions(dry_run=True, patched=True)
    seen = rest.patch(Target(old, "default", "one"), patch.MERGE, labels, options)
    assert seen.obj["spec"] == {"new": "n"}
    assert stored.obj == stored.copy()


async def test_objects_are_read_as_their_crd_has_them_now(
    client: Client, namespace: str, toys: Resource
) -> None:
    made = await client.create(toys, toy(namespace, "one", code="old"))
    crd = await client.get(CRDS, "toys.test.example.org")
    before = copy.deepcopy(crd["spec"])
    for version in crd["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"]["shade"] = {"type": "string", "default": "dark"}
        del spec["properties"]["code"]
        spec["x-kubernetes-validations"] = [{"rule": "self.shade == oldSelf.shade"}]
    crd = await client.replace(CRDS, crd)
    try:
        (listed,) = (await client.list(toys, namespace))["items"]
        assert listed == await client.get(toys, "one", namespace)
        assert listed["metadata"] == made["metadata"], "nothing was written"
        assert listed["spec"]["shade"] == "dark" and "code" not in listed["spec"]
        old = await client.get(OLD_TOYS, "one", namespace)
        assert old == listed | {"apiVersion": "test.example.org/v1beta1"}
        with pytest.raises(Invalid, match=r"failed rule: self\.shade == oldSelf"):
            await client.patch(toys, "one", namespace, {"spec": {"shade": "light"}})
    finally:
        await client.replace(CRDS, crd | {"spec": before})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"size": "big"}, 'spec.size: Invalid value: "string": spec.size in body must be of type'),
        ({"size": 0}, "spec.size in body should be greater than or equal to 1"),
        ({"size": 10}, "spec.size in body should be less than or equal to 9"),
        ({"size": None}, "spec.size: Required value"),
        ({"colour": "green"}, 'Unsupported value: "green": supported values: "red", "blue"'),
        ({"code": "A1"}, "spec.code in body should match '^[a-z]+$'"),
        ({"port": 1.5}, "spec.port in body must be of type integer or string"),
        ({"parts": [{"count": 1}]}, "spec.parts[0].name: Required value"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]: Duplicate value"),
    ],
)
async def test_a_wrong_custom_resource_is_refused_with_the_fields_path(
    client: Client, namespace: str, toys: Resource, spec: Object, expected: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(toys, toy(namespace, "one", **spec))
    assert 'Toy.test.example.org "one" is invalid: ' in caught.value.message
    assert expected in caught.value.message


async def test_custom_resources_take_no_strategic_patch(
    client: Client, namespace: str, toys: Resource
) -> None:
    await client.create(toys, toy(namespace, "one"))
    with pytest.raises(ApiError) as caught:
        await client.patch(toys, "one", namespace, {}, patch_type="strategic")
    assert caught.value.code == 415
    assert "strategic" not in caught.value.message.partition("expected")[2]


async def test_generation_counts_changes_of_the_spec(
    client: Client, namespace: str, toys: Resource
) -> None:
    await client.create(toys, toy(namespace, "one"))

    async def generation(body: Object, subresource: str | None = None) -> int:
        patched = await client.patch(toys, "one", namespace, body, subresource=subresource)
        return int(patched["metadata"]["generation"])

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"replicas": 4}}, "status") == 1
    assert await generation({"spec": {"size": 4}}) == 2
    body = {"status": {"replicas": 5}, "metadata": {"labels": {"a": "c"}}, "spec": {"size": 5}}
    assert await generation(body, "status") == 2
    found = await client.get(toys, "one", namespace)
    assert found["metadata"]["labels"] == {"a": "b"} and found["spec"]["size"] == 4
    assert found["status"] == {"replicas": 5}
    with pytest.raises(Invalid, match="must be specified for an update"):
        await client.replace(toys, toy(namespace, "one"))


async def test_the_scale_subresource(client: Client, namespace: str, toys: Resource) -> None:
    await client.create(toys, toy(namespace, "one"))
    path = toys.path(namespace, "one", "scale")
    scale = await client.request("GET", path)
    assert scale["kind"] == "Scale" and scale["spec"] == {"replicas": 1}
    await client.request("PUT", path, body={**scale, "spec": {"replicas": 6}})
    assert (await client.get(toys, "one", namespace))["spec"]["replicas"] == 6
    merge = "application/merge-patch+json"
    body = {"spec": {"replicas": 2}}
    patched = await client.request("PATCH", path, body=body, content_type=merge)
    assert patched["spec"] == {"replicas": 2}


async def test_a_crd_takes_its_objects_with_it(client: Client) -> None:
    crd = toy_crd()
    crd["metadata"]["name"] = "boxes.test.example.org"
    crd["spec"]["names"] = {"plural": "boxes", "kind": "Box"}
    boxes = Resource("test.example.org", "v1", "boxes", "Box")
    await client.create(CRDS, crd)
    one = await client.create(boxes, {**toy("default", "one"), "kind": "Box"})
    within = configmap("default", "within")
    owner = {"apiVersion": one["apiVersion"], "kind": "Box", "name": "one"}
    within["metadata"]["ownerReferences"] = [owner | {"uid": one["metadata"]["uid"]}]
    await client.create(CONFIGMAPS, within)
    await client.delete(CRDS, "boxes.test.example.org")
    await until(lambda: gone(client, CONFIGMAPS, "within", "default"))
    await until(lambda: gone(client, CRDS, "boxes.test.example.org", None))
    with pytest.raises(NotFound, match="404 page not found"):
        await client.list(boxes, "default")


async def test_a_wrong_crd_is_refused(client: Client) -> None:
    crd = toy_crd()
    crd["metadata"]["name"] = "wrong"
    schema = {"type": "object", "properties": {"spec": {"type": "string", "pattern": "["}}}
    crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    del crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["served"]
    crd["spec"]["conversion"] = {"strategy": "Webhook"}
    with pytest.raises(Invalid) as caught:
        await client.create(CRDS, crd)
    assert "must be toys.test.example.org (plural.group)" in caught.value.message
    for place in (
        "openAPIV3Schema.properties[spec].pattern",
        "spec.names.kind: Required",
        "spec.versions[0].served: Required",
        'spec.conversion.strategy: Unsupported value: "Webhook"',
    ):
        assert place in caught.value.message


async def test_tables_follow_printer_columns(
    client: Client, namespace: str, toys: Resource
) -> None:
    await client.create(toys, toy(namespace, "one"))
    conditions = [{"type": "Created"}, {"type": "Running"}]
    await client.patch(
        toys, "one", namespace, {"status": {"conditions": conditions}}, subresource="status"
    )
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    url = client.access.server + toys.path(namespace)
    async with client.session.get(url, headers=client.access.headers | accept) as answer:
        table = await answer.json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "State"]
    assert table["rows"][0]["cells"] == ["one", 3, "Running"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
