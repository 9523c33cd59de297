"""Watches over HTTP."""

from __future__ import annotations

import asyncio

import pytest
from apiserver_world import Watching, configmap

from volcano_elastic.kube.client import Client, Gone
from volcano_elastic.kube.resource import CONFIGMAPS


async def test_a_watch_resumes_where_it_was(client: Client, namespace: str) -> None:
    version = (await client.list(CONFIGMAPS, namespace))["metadata"]["resourceVersion"]
    live = Watching(client, CONFIGMAPS, namespace, resource_version=version)
    await client.create(CONFIGMAPS, configmap(namespace, "one"))
    await client.patch(CONFIGMAPS, "one", namespace, {"data": {"a": "b"}})
    await client.create(CONFIGMAPS, configmap("default", f"elsewhere-{namespace}"))
    await client.delete(CONFIGMAPS, "one", namespace)
    expected = [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    assert await live.names(3) == expected
    replayed = Watching(client, CONFIGMAPS, namespace, resource_version=version)
    assert await replayed.names(3) == expected
    later = live.events[0][1]["metadata"]["resourceVersion"]
    rest = Watching(client, CONFIGMAPS, namespace, resource_version=later)
    assert await rest.names(2) == expected[1:]
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in live.events]
    assert versions == sorted(set(versions))


async def test_leaving_a_selector_is_a_deletion_with_the_object_as_it_was(
    client: Client, namespace: str
) -> None:
    obj = configmap(namespace, "one")
    obj["metadata"]["labels"] = {"in": "yes"}
    made = await client.create(CONFIGMAPS, obj)
    version = made["metadata"]["resourceVersion"]
    watching = Watching(
        client, CONFIGMAPS, namespace, resource_version=version, label_selector="in=yes"
    )
    left = await client.patch(CONFIGMAPS, "one", namespace, {"metadata": {"labels": {"in": "no"}}})
    await client.patch(CONFIGMAPS, "one", namespace, {"metadata": {"labels": {"in": "yes"}}})
    assert await watching.names(2) == [("DELETED", "one"), ("ADDED", "one")]
    last = watching.events[0][1]["metadata"]
    assert last["labels"] == {"in": "yes"}
    assert last["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_revision_of_another_life_is_too_old(client: Client) -> None:
    for version in ("1", str(10**17)):
        with pytest.raises(Gone):
            async for _ in client.watch(CONFIGMAPS, "default", resource_version=version):
                pass


async def test_a_watch_ends_in_time_and_sends_its_first_state(
    client: Client, namespace: str
) -> None:
    await client.create(CONFIGMAPS, configmap(namespace, "one"))
    params = {"watch": "1", "timeoutSeconds": "1"}
    async with asyncio.timeout(5):
        async with client.session.get(
            client.access.server + CONFIGMAPS.path(namespace),
            params=params,
            headers=client.access.headers,
        ) as answer:
            lines = [line async for line in answer.content]
    assert len(lines) == 1 and b'"type":"ADDED"' in lines[0]
