"""Finalizers, preconditions, owners, namespaces and collections."""

from __future__ import annotations

import pytest

from tests.embedded_cluster.apiserver.world import NAMESPACES, bind, configmap, gone, pod, until
from volcano_elastic.kube.client import ApiError, Client, Conflict, Invalid
from volcano_elastic.kube.resource import CONFIGMAPS, PODS, Object


async def test_finalizers_hold_an_object(client: Client, namespace: str) -> None:
    obj = configmap(namespace, "held")
    obj["metadata"]["finalizers"] = ["example.org/hold"]
    await client.create(CONFIGMAPS, obj)
    answer = await client.delete(CONFIGMAPS, "held", namespace)
    assert answer["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["example.org/hold", "example.org/more"]}}
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await client.patch(CONFIGMAPS, "held", namespace, more)
    await client.patch(CONFIGMAPS, "held", namespace, {"metadata": {"finalizers": None}})
    assert await gone(client, CONFIGMAPS, "held", namespace)


async def test_preconditions_of_a_deletion(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, configmap(namespace, "one"))
    with pytest.raises(Conflict, match="UID in precondition"):
        await client.delete(CONFIGMAPS, "one", namespace, uid="another")
    options = {"preconditions": {"resourceVersion": "1"}}
    with pytest.raises(Conflict, match="ResourceVersion in precondition"):
        await client.request("DELETE", CONFIGMAPS.path(namespace, "one"), body=options)
    await client.delete(CONFIGMAPS, "one", namespace, uid=made["metadata"]["uid"])
    assert await gone(client, CONFIGMAPS, "one", namespace)


def owned(obj: Object, owner: Object, *, block: bool = False) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }
    obj["metadata"].setdefault("ownerReferences", []).append(reference)
    return obj


async def test_dependents_go_with_their_owner(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    other = await client.create(CONFIGMAPS, configmap(namespace, "other"))
    child = await client.create(CONFIGMAPS, owned(configmap(namespace, "child"), owner))
    await client.create(CONFIGMAPS, owned(configmap(namespace, "grandchild"), child))
    await client.create(PODS, owned(pod(namespace, "pod"), owner))
    shared = owned(owned(configmap(namespace, "shared"), owner), other)
    await client.create(CONFIGMAPS, shared)
    await client.delete(CONFIGMAPS, "owner", namespace)
    for resource, name in ((CONFIGMAPS, "child"), (CONFIGMAPS, "grandchild"), (PODS, "pod")):
        await until(lambda r=resource, n=name: gone(client, r, n, namespace))

    async def one_owner() -> bool:
        found = await client.get(CONFIGMAPS, "shared", namespace)
        return [one["name"] for one in found["metadata"]["ownerReferences"]] == ["other"]

    await until(one_owner)


async def test_a_dependent_that_comes_too_late_goes_too(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.delete(CONFIGMAPS, "owner", namespace)
    await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.create(PODS, owned(pod(namespace, "late"), owner))
    await until(lambda: gone(client, PODS, "late", namespace))


async def test_an_owner_of_a_kind_that_is_not_served_may_yet_be_there(
    client: Client, namespace: str
) -> None:
    odd = {"apiVersion": "odd.example.org/v1", "kind": "Odd", "metadata": {"name": "a", "uid": "7"}}
    await client.create(CONFIGMAPS, owned(configmap(namespace, "kept"), odd))
    gone_one = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.create(CONFIGMAPS, owned(configmap(namespace, "child"), gone_one))
    await client.delete(CONFIGMAPS, "owner", namespace)
    await until(lambda: gone(client, CONFIGMAPS, "child", namespace))
    assert await client.get(CONFIGMAPS, "kept", namespace)


async def test_foreground_and_orphaning_deletion(client: Client, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    held = owned(configmap(namespace, "held"), owner, block=True)
    held["metadata"]["finalizers"] = ["example.org/hold"]
    await client.create(CONFIGMAPS, held)
    await client.delete(CONFIGMAPS, "owner", namespace, propagation_policy="Foreground")

    async def marked() -> bool:
        found = await client.get(CONFIGMAPS, "held", namespace)
        return "deletionTimestamp" in found["metadata"]

    await until(marked)
    waiting = await client.get(CONFIGMAPS, "owner", namespace)
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    await client.patch(CONFIGMAPS, "held", namespace, {"metadata": {"finalizers": None}})
    await until(lambda: gone(client, CONFIGMAPS, "owner", namespace))

    owner = await client.create(CONFIGMAPS, configmap(namespace, "owner"))
    await client.create(CONFIGMAPS, owned(configmap(namespace, "orphan"), owner))
    await client.delete(CONFIGMAPS, "owner", namespace, propagation_policy="Orphan")
    await until(lambda: gone(client, CONFIGMAPS, "owner", namespace))
    orphan = await client.get(CONFIGMAPS, "orphan", namespace)
    assert "ownerReferences" not in orphan["metadata"]


async def test_a_namespace_goes_with_its_contents(client: Client, namespace: str) -> None:
    await client.create(CONFIGMAPS, configmap(namespace, "one"))
    await client.create(PODS, pod(namespace, "bound"))
    await bind(client, namespace, "bound")
    await client.delete(NAMESPACES, namespace)
    leaving = await client.get(NAMESPACES, namespace)
    assert leaving["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError, match="being terminated"):
        await client.create(CONFIGMAPS, configmap(namespace, "late"))
    await until(lambda: gone(client, CONFIGMAPS, "one", namespace))
    await client.delete(PODS, "bound", namespace, grace_period_seconds=0)
    await until(lambda: gone(client, NAMESPACES, namespace, None))


async def test_deletecollection_takes_what_is_selected(client: Client, namespace: str) -> None:
    for n in range(4):
        obj = configmap(namespace, f"c{n}")
        obj["metadata"]["labels"] = {"half": str(n % 2)}
        await client.create(CONFIGMAPS, obj)
    await client.request("DELETE", CONFIGMAPS.path(namespace), params={"labelSelector": "half=1"})
    left = await client.list(CONFIGMAPS, namespace)
    assert [item["metadata"]["name"] for item in left["items"]] == ["c0", "c2"]


async def test_what_has_gone_meanwhile_holds_up_no_deletion_of_many(
    client: Client, namespace: str
) -> None:
    for name in "abc":
        await client.create(CONFIGMAPS, configmap(namespace, name))
    path, params = CONFIGMAPS.path(namespace), {"limit": "1"}
    first = await client.request("DELETE", path, params=params)
    await client.delete(CONFIGMAPS, "b", namespace)
    await client.request(
        "DELETE", path, params={"continue": first["metadata"]["continue"], "limit": "0"}
    )
    assert (await client.list(CONFIGMAPS, namespace))["items"] == []
