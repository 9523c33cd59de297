"""Objects for the tests of the embedded API server, and how to wait for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.patience import eventually
from volcano_elastic.kube.client import Client, NotFound
from volcano_elastic.kube.resource import PODS, Object, Resource

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
TOYS = Resource("test.example.org", "v1", "toys", "Toy")
OLD_TOYS = Resource("test.example.org", "v1beta1", "toys", "Toy")
TIMEOUT = 60

TOY_SCHEMA: Object = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "replicas": {"type": "integer", "default": 1},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "code": {"type": "string", "pattern": "^[a-z]+$"},
                "port": {"x-kubernetes-int-or-string": True},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "count": {"type": "integer", "default": 7},
                        },
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "conditions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                    },
                },
            },
        },
    },
}


def toy_crd() -> Object:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
    ]
    version = {
        "served": True,
        "schema": {"openAPIV3Schema": TOY_SCHEMA},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.test.example.org"},
        "spec": {
            "group": "test.example.org",
            "scope": "Namespaced",
            "names": {"plural": "toys", "kind": "Toy", "shortNames": ["ty"]},
            "versions": [
                {"name": "v1", "storage": True, **version},
                {"name": "v1beta1", "storage": False, **version},
            ],
        },
    }


def configmap(namespace: str, name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def pod(namespace: str, name: str, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "image"}], **spec},
    }


def toy(namespace: str, name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "test.example.org/v1",
        "kind": "Toy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"size": 3, **spec},
    }


async def bind(client: Client, namespace: str, name: str, node: str = "node-1") -> None:
    binding = {
        "metadata": {"name": name, "namespace": namespace},
        "target": {"kind": "Node", "name": node},
    }
    await client.create(PODS, binding, subresource="binding")


async def until(what: Callable[[], Any], *, seconds: float = TIMEOUT) -> Any:
    """The first true answer of `what`."""
    return await eventually(what, f"true: {what}", seconds=seconds)


async def gone(client: Client, resource: Resource, name: str, namespace: str | None) -> bool:
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return True
    return False


class Watching:
    """Collects a watch's events while the test goes on."""

    def __init__(self, client: Client, resource: Resource, namespace: str, **options: Any) -> None:
        self.events: list[tuple[str, Object]] = []
        self._task = asyncio.create_task(self._run(client, resource, namespace, options))

    async def _run(
        self, client: Client, resource: Resource, namespace: str, options: Object
    ) -> None:
        async for event in client.watch(resource, namespace, **options):
            self.events.append(event)

    async def names(self, count: int) -> list[tuple[str, str]]:
        await until(lambda: asyncio.sleep(0, len(self.events) >= count))
        self._task.cancel()
        return [(kind, obj["metadata"]["name"]) for kind, obj in self.events]
