"""A cluster of an API server and a kubelet, and its pods, for tests with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from embedded_cluster.cluster import LocalCluster
from tests.patience import PATIENCE, eventually
from volcano_elastic.kube.client import Client, NotFound
from volcano_elastic.kube.resource import CONFIGMAPS, EVENTS, PODS, SECRETS, SERVICES

_OF_CONTAINERS = {
    *("env", "envFrom", "args", "volumeMounts", "workingDir", "resources", "lifecycle"),
    *("livenessProbe", "readinessProbe"),
    *("terminationMessagePath", "terminationMessagePolicy"),
}
# Kubernetes begins with ten seconds, which the tests can't wait for.
QUICK = ("--restart-back-off", "0.5", "--node-monitor-grace-period", "1")


class World:
    """A cluster of an API server and a kubelet, whose pods are bound as they are created."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client

    async def create(self, name: str, *command: str, **spec: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "any", "command": list(command)}
        for key in _OF_CONTAINERS & spec.keys():
            container[key] = spec.pop(key)
        metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
        metadata |= spec.pop("metadata", {})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "nodeName": "node-1",
                "restartPolicy": "Never",
                "containers": [container],
                **spec,
            },
        }
        created: dict[str, Any] = await self.client.create(PODS, pod)
        return created

    async def until(
        self, name: str, holds: Callable[[dict[str, Any]], object], seconds: float = PATIENCE
    ) -> dict[str, Any]:
        pod: dict[str, Any] = {}

        async def look() -> bool:
            nonlocal pod
            pod = await self.client.get(PODS, name, "default")
            return bool(holds(pod))

        try:
            await eventually(look, f"pod {name} is as expected", seconds=seconds)
        except AssertionError as error:
            log = (self.cluster.logs / "kubelet.log").read_text()
            pytest.fail(f"{error}; {pod.get('status')}\n{log[-3000:]}")
        return pod

    async def told(self, reason: str, text: str) -> None:
        """Waits for a warning with this reason, and the text in its message."""
        deadline = time.monotonic() + PATIENCE
        while True:
            events = (await self.client.list(EVENTS, "default"))["items"]
            warnings = [e for e in events if e["type"] == "Warning" and e["reason"] == reason]
            if any(text in warning["message"] for warning in warnings):
                return
            if time.monotonic() > deadline:
                pytest.fail(f"no {reason} with {text!r}: {[e['message'] for e in events]}")
            await asyncio.sleep(0.05)

    async def phase(self, name: str, phase: str) -> dict[str, Any]:
        return await self.until(name, lambda pod: pod.get("status", {}).get("phase") == phase)

    async def gone(self, name: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                await self.client.get(PODS, name, "default")
            except NotFound:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"{name} is still there after {seconds} s")

    def arguments(self) -> str:
        return Path(f"/proc/{self.cluster.processes['kubelet']}/cmdline").read_text()

    def log(self, pod: dict[str, Any], container: str = "main") -> str:
        folder = pod["metadata"]["annotations"]["local.volcano-elastic.io/log-dir"]
        return (Path(folder) / f"{container}.log").read_text()

    async def logged(self, name: str, text: str) -> dict[str, Any]:
        return await self.until(
            name,
            lambda pod: (
                pod.get("status", {}).get("containerStatuses", [{}])[0].get("containerID")
                and text in self.log(pod)
            ),
        )


@contextlib.asynccontextmanager
async def cleared(cluster: LocalCluster) -> AsyncIterator[World]:
    async with asyncio.timeout(3 * PATIENCE), cluster.client() as client:
        yield World(cluster, client)
        for resource in (PODS, SERVICES, CONFIGMAPS, SECRETS):
            for item in (await client.list(resource, "default"))["items"]:
                with contextlib.suppress(NotFound):
                    name = item["metadata"]["name"]
                    await client.delete(resource, name, "default", grace_period_seconds=0)


def state_of(pod: dict[str, Any], kind: str = "terminated") -> dict[str, Any]:
    state: dict[str, Any] = pod["status"]["containerStatuses"][0]["state"].get(kind, {})
    return state


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def dead(pids: list[int], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, f"{[p for p in pids if alive(p)]} still run"
        await asyncio.sleep(0.02)
