"""Admission webhooks that are asked, or not, or never answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.embedded_cluster.apiserver.world import configmap
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.resource import CONFIGMAPS, Resource

_HOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)


@asynccontextmanager
async def _guarding(client: Client, namespace: str, **hook: Any) -> AsyncIterator[None]:
    """While a webhook is asked about the ConfigMaps of the namespace."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"],
    }
    configuration = {
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "guard.example.org",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "rules": [rule],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                **hook,
            }
        ],
    }
    await client.create(_HOOKS, configuration)
    try:
        yield
    finally:
        await client.delete(_HOOKS, namespace)


async def test_a_webhook_that_never_answers_holds_up_nobody_else(
    client: Client, namespace: str
) -> None:
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
    url = f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
    hook = {"clientConfig": {"url": url}, "timeoutSeconds": 2}
    async with silent:
        async with _guarding(client, namespace, **hook, failurePolicy="Fail"):
            held = asyncio.create_task(client.create(CONFIGMAPS, configmap(namespace, "held")))
            await client.create(CONFIGMAPS, configmap("default", namespace))
            await client.delete(CONFIGMAPS, namespace, "default")
            assert not held.done()
            with pytest.raises(ApiError, match=r"guard\.example\.org.: no answer within 2 s"):
                await held
        async with _guarding(client, namespace, **hook | {"timeoutSeconds": 1}):
            with pytest.raises(ApiError, match="no answer within 1 s"):
                await client.create(CONFIGMAPS, configmap(namespace, "held"))
        async with _guarding(client, namespace, **hook, failurePolicy="Ignore"):
            await client.create(CONFIGMAPS, configmap(namespace, "let-in"))


async def test_an_object_cannot_be_changed_out_of_a_webhooks_selector(
    client: Client, namespace: str
) -> None:
    obj = configmap(namespace, "one")
    obj["metadata"]["labels"] = {"guarded": ""}
    await client.create(CONFIGMAPS, obj)
    free = await client.create(CONFIGMAPS, configmap(namespace, "free"))
    closed = {"clientConfig": {"url": "https://127.0.0.1:1/"}}
    selector = {"matchLabels": {"guarded": ""}}
    async with _guarding(client, namespace, **closed, objectSelector=selector):
        await client.replace(CONFIGMAPS, free | {"data": {"k": "v"}})
        with pytest.raises(ApiError, match="failed calling webhook"):
            await client.patch(
                CONFIGMAPS, "one", namespace, {"metadata": {"labels": {"guarded": None}}}
            )


async def test_an_apply_that_leaves_nothing_owned_does_so_past_a_webhook_too(
    client: Client, namespace: str
) -> None:
    closed = {"clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Ignore"}
    obj = {"apiVersion": "v1", "kind": "ConfigMap", **configmap(namespace, "one", k="v")}
    await client.patch(CONFIGMAPS, "one", namespace, obj, patch_type="apply")
    obj.pop("data")
    async with _guarding(client, namespace, **closed):
        left = await client.patch(CONFIGMAPS, "one", namespace, obj, patch_type="apply")
    assert not {"data", "managedFields"} & {*left, *left["metadata"]}
