"""Objects over HTTP: metadata, conflicts, names, lists."""

from __future__ import annotations

import base64

import pytest

from tests.embedded_cluster.apiserver.world import configmap, gone, pod
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, Conflict, Invalid, NotFound
from volcano_elastic.kube.resource import CONFIGMAPS, PODS, Object


async def test_a_created_object_gets_its_metadata(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, configmap(namespace, "one", a="b"))
    meta = made["metadata"]
    assert meta["uid"] and meta["creationTimestamp"].endswith("Z") and int(meta["resourceVersion"])
    assert made["kind"] == "ConfigMap" and made["apiVersion"] == "v1"
    assert await client.get(CONFIGMAPS, "one", namespace) == made
    with pytest.raises(AlreadyExists) as caught:
        await client.create(CONFIGMAPS, configmap(namespace, "one"))
    assert caught.value.message == 'configmaps "one" already exists'


async def test_a_stale_writer_gets_a_conflict(client: Client, namespace: str) -> None:
    first = await client.create(CONFIGMAPS, configmap(namespace, "one", a="1"))
    await client.replace(CONFIGMAPS, {**first, "data": {"a": "2"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, {**first, "data": {"a": "3"}})
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
    with pytest.raises(Conflict):
        await client.patch(CONFIGMAPS, "one", namespace, {**stale, "data": {"a": "3"}})
    assert (await client.get(CONFIGMAPS, "one", namespace))["data"] == {"a": "2"}


async def test_generate_name_and_dry_run(client: Client, namespace: str) -> None:
    obj = {"metadata": {"generateName": "made-", "namespace": namespace}}
    names = {(await client.create(CONFIGMAPS, obj))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5 and all(len(name) == len("made-") + 5 for name in names)
    tried = await client.create(PODS, pod(namespace, "tried"), dry_run=True)
    assert tried["spec"]["restartPolicy"] == "Always"
    assert await gone(client, PODS, "tried", namespace)


async def test_an_unknown_namespace_and_a_bad_name_are_refused(
    client: Client, namespace: str
) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await client.create(CONFIGMAPS, configmap("nowhere", "one"))
    with pytest.raises(Invalid, match=r"metadata\.name: Invalid value: \"Upper\""):
        await client.create(CONFIGMAPS, configmap(namespace, "Upper"))


async def test_lists_select_by_label_and_field_and_come_in_pages(
    client: Client, namespace: str
) -> None:
    for n in range(5):
        obj = configmap(namespace, f"c{n}")
        obj["metadata"]["labels"] = {"parity": "odd" if n % 2 else "even", f"n{n}": ""}
        await client.create(CONFIGMAPS, obj)

    async def names(**options: str) -> list[str]:
        answer = await client.list(CONFIGMAPS, namespace, **options)
        return [item["metadata"]["name"] for item in answer["items"]]

    assert await names(label_selector="parity=odd") == ["c1", "c3"]
    assert await names(label_selector="parity in (odd),!n1") == ["c3"]
    assert await names(label_selector="parity notin (odd, x)") == ["c0", "c2", "c4"]
    assert await names(label_selector="n2") == ["c2"]
    assert await names(label_selector="parity!=odd,n0") == ["c0"]
    assert await names(field_selector="metadata.name=c4") == ["c4"]
    with pytest.raises(ApiError, match="field label not supported"):
        await names(field_selector="data.a=b")
    with pytest.raises(ApiError, match="unable to parse"):
        await names(label_selector="a b c")
    wrong = {"watch": "1", "timeoutSeconds": "1", "labelSelector": "a b c"}
    with pytest.raises(ApiError, match="unable to parse"):
        await client.request("GET", CONFIGMAPS.path(namespace), params=wrong)
    seen, token = [], ""
    while True:
        params = {"limit": "2", "continue": token}
        page = await client.request("GET", CONFIGMAPS.path(namespace), params=params)
        seen += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        assert page["metadata"]["remainingItemCount"] == 5 - len(seen)
    assert seen == ["c0", "c1", "c2", "c3", "c4"]


async def test_pages_show_one_moment_whatever_changes(client: Client, namespace: str) -> None:
    for name in "bdf":
        await client.create(CONFIGMAPS, configmap(namespace, name, k="old"))

    async def listed(**params: str) -> Object:
        return await client.request("GET", CONFIGMAPS.path(namespace), params=params)

    first = await listed(limit="1")
    then = first["metadata"]["resourceVersion"]
    await client.create(CONFIGMAPS, configmap(namespace, "e"))
    await client.delete(CONFIGMAPS, "f", namespace)
    await client.patch(CONFIGMAPS, "d", namespace, {"data": {"k": "new"}})
    await client.delete(CONFIGMAPS, "d", namespace)
    await client.create(CONFIGMAPS, configmap(namespace, "d", k="newer"))
    rest = await listed(**{"limit": "5", "continue": first["metadata"]["continue"]})
    seen = first["items"] + rest["items"]
    assert [(one["metadata"]["name"], one["data"]["k"]) for one in seen] == [
        ("b", "old"),
        ("d", "old"),
        ("f", "old"),
    ]
    assert rest["metadata"]["resourceVersion"] == then
    newer = await listed(resourceVersion=then, limit="5", resourceVersionMatch="NotOlderThan")
    assert [one["metadata"]["name"] for one in newer["items"]] == ["b", "d", "e"]
    for exact in ({"resourceVersionMatch": "Exact"}, {"limit": "5"}):
        old = await listed(resourceVersion=then, **exact)
        assert old["items"] == seen and old["metadata"]["resourceVersion"] == then
    with pytest.raises(ApiError, match="Too large resource version") as caught:
        await listed(resourceVersion="9" * 19)
    assert caught.value.code == 504
    told = base64.urlsafe_b64encode(b'[1,"",""]').decode()
    with pytest.raises(ApiError, match="not known any more") as caught:
        await listed(**{"continue": told})
    assert caught.value.code == 410


@pytest.mark.parametrize("told", ["nonsense", '["x","",""]', "[1e999,0,0]", "[1]", "7", "{}"])
async def test_a_page_that_nobody_was_told_of_is_refused(
    client: Client, namespace: str, told: str
) -> None:
    token = base64.urlsafe_b64encode(told.encode()).decode()
    with pytest.raises(ApiError, match="continue key is not valid") as caught:
        await client.request("GET", CONFIGMAPS.path(namespace), params={"continue": token})
    assert caught.value.code == 400
