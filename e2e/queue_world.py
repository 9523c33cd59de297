"""Queues, elastic jobs whose pods only pretend to run, and what is seen of every pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import PATIENCE, Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.kubelet.fake import LEAVE_SECONDS
from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import (
    EVENTS,
    PODGROUPS,
    PODS,
    PYTORCHJOBS,
    QUEUEPOLICIES,
    QUEUES,
    RESOURCEQUOTAS,
)

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
JOB_LABEL = "training.kubeflow.org/job-name"


@dataclass
class Life:
    """One pod, in seconds of the event loop's clock."""

    name: str
    owner: str
    """Its job or service."""
    index: int
    created: float
    running: float | None = None
    told: float | None = None
    gone: float | None = None
    protected: bool = False
    """When it was last seen staying."""
    node: str = ""


@dataclass
class QueueWorld:
    stage: Stage
    client: Client
    lives: dict[str, Life] = field(default_factory=dict)
    """By uid."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # What is asked for

    async def queue(self, name: str, **spec: Any) -> None:
        body = {
            "apiVersion": QUEUES.api_version,
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"weight": 1, "reclaimable": True} | spec,
        }
        try:
            await self.client.create(QUEUES, body)
        except AlreadyExists:
            await self.client.patch(QUEUES, name, None, {"spec": body["spec"]})
        # Where Volcano's queue controller doesn't.
        status = {"status": {"state": "Open"}}
        await self.client.patch(QUEUES, name, None, status, subresource="status")

    async def policy(self, name: str, queue: str, **spec: Any) -> None:
        body = {
            "apiVersion": QUEUEPOLICIES.api_version,
            "kind": "QueuePolicy",
            "metadata": {"name": name},
            "spec": {"queue": queue} | spec,
        }
        await self.client.create(QUEUEPOLICIES, body)

    async def policy_status(self, name: str) -> Object:
        found = await self.client.get(QUEUEPOLICIES, name)
        status: Object = found.get("status") or {}
        return status

    async def condition(self, name: str, type_: str) -> tuple[str, str]:
        """Status and reason of a policy's condition."""
        conditions = (await self.policy_status(name)).get("conditions") or ()
        return next(
            ((c["status"], c["reason"]) for c in conditions if c["type"] == type_), ("", "")
        )

    async def job(
        self,
        name: str,
        low: int,
        high: int,
        *,
        queue: str = "default",
        min_available: int | None = None,
        leave: float = 0.0,
        cooldown: int | None = 0,
    ) -> None:
        container = {
            "name": "pytorch",
            "image": "train:1",
            "resources": {"limits": {GPU: 1}, "requests": {"cpu": "100m"}},
        }
        template = {
            "metadata": {"annotations": {LEAVE_SECONDS: str(leave)}},
            "spec": {"terminationGracePeriodSeconds": 10, "containers": [container]},
        }
        said = {} if cooldown is None else {"cooldownSeconds": cooldown}
        scheduling: Object = {"queue": queue}
        if min_available is not None:
            scheduling["minAvailable"] = min_available
        body = {
            "apiVersion": PYTORCHJOBS.api_version,
            "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "elasticPolicy": {"min": low, "max": high} | said,
                "runPolicy": {"schedulingPolicy": scheduling},
                "pytorchReplicaSpecs": {"Worker": {"template": template}},
            },
        }
        await self.client.create(PYTORCHJOBS, body)

    async def gang(self, name: str, pods: int, *, queue: str = "default") -> None:
        """Return another controller's gang: a PodGroup and pods that must all run."""
        group = {
            "apiVersion": PODGROUPS.api_version,
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minMember": pods, "queue": queue, "minResources": {GPU: str(pods)}},
        }
        await self.client.create(PODGROUPS, group)
        for index in range(pods):
            await self.client.create(PODS, _pod(f"{name}-{index}", name))

    async def delete_gang(self, name: str, pods: int) -> None:
        for index in range(pods):
            await self.client.delete(PODS, f"{name}-{index}", "default")
        await self.client.delete(PODGROUPS, name, "default")

    async def quota(self, gpus: int, used: int) -> None:
        """Return the namespace's quota; `used` for where nothing counts it."""
        hard, spent = {f"requests.{GPU}": str(gpus)}, {f"requests.{GPU}": str(used)}
        body = {
            "apiVersion": RESOURCEQUOTAS.api_version,
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": "default"},
            "spec": {"hard": hard},
        }
        with suppress(AlreadyExists):
            await self.client.create(RESOURCEQUOTAS, body)
        change = {"spec": {"hard": hard}}
        await self.client.patch(RESOURCEQUOTAS, "gpus", "default", change)
        status = {"status": {"hard": hard, "used": spent}}
        await self.client.patch(RESOURCEQUOTAS, "gpus", "default", status, subresource="status")

    async def plain_pod(self, name: str) -> None:
        """Return a pod of the default scheduler, outside jobs and gangs."""
        body = _pod(name, name)
        del body["metadata"]["annotations"]
        body["spec"]["schedulerName"] = "default-scheduler"
        await self.client.create(PODS, body)

    # What is seen

    def of(self, owner: str) -> list[Life]:
        return [life for life in self.lives.values() if life.owner == owner]

    def there(self, owner: str) -> list[Life]:
        """Running, and not told to leave."""
        return [x for x in self.of(owner) if x.running and not x.told and not x.gone]

    async def elastic(self, job: str) -> Object:
        found = await self.client.get(PYTORCHJOBS, job, "default")
        status: Object = (found.get("status") or {}).get("elastic") or {}
        return status

    async def evictions(self) -> list[str]:
        events = (await self.client.list(EVENTS))["items"]
        return [e["message"] for e in events if e["reason"] == "Evict"]

    async def until(
        self,
        holds: Callable[[], object] | Callable[[], Awaitable[object]],
        what: str,
        seconds: float = PATIENCE,
    ) -> None:
        deadline = self.now() + seconds
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            if self.now() > deadline:
                lives = "\n".join(map(str, self.lives.values()))
                pytest.fail(f"{what}: not within {seconds} s\n{lives}\n{self.stage.story()}")
            await asyncio.sleep(0.03)

    async def size(self, job: str, size: int, seconds: float = PATIENCE) -> None:
        await self.until(
            lambda: len(self.there(job)) == size, f"{job} runs with {size} workers", seconds
        )

    def note(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        meta, labels = pod["metadata"], pod["metadata"].get("labels") or {}
        owner = labels.get(JOB_LABEL) or labels.get("service", "")
        life = self.lives.get(meta["uid"])
        if life is None:
            index = int(meta["name"].rpartition("-")[2])
            life = self.lives[meta["uid"]] = Life(meta["name"], owner, index, self.now())
        if new is None:
            life.gone = life.gone or self.now()
            return
        life.node = pod["spec"].get("nodeName") or ""
        if pod.get("status", {}).get("phase") == "Running":
            life.running = life.running or self.now()
        if meta.get("deletionTimestamp"):
            life.told = life.told or self.now()
        else:
            annotations = meta.get("annotations") or {}
            life.protected = annotations.get("volcano.sh/preemptable") == "false"


def _pod(name: str, group: str) -> Object:
    container = {
        "name": "main",
        "image": "serve:1",
        "resources": {"limits": {GPU: 1}, "requests": {"cpu": "100m"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"service": group.partition("-")[0]},
            "annotations": {"scheduling.k8s.io/group-name": group},
        },
        "spec": {
            "schedulerName": "volcano",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


@asynccontextmanager
async def queue_world(
    plane: ControlPlane, out: Path, *, nodes: int = 2, gpus_per_node: int = 4
) -> AsyncIterator[QueueWorld]:
    """Everything is real but the containers: pods run as soon as they are bound."""
    async with (
        running(plane, out, nodes=nodes, gpus_per_node=gpus_per_node, kubelet="fake") as stage,
        plane.client() as client,
    ):
        world = QueueWorld(stage, client)
        pods = Informer(client, PODS)
        pods.on_change(world.note)
        watching = asyncio.create_task(pods.run())
        try:
            await world.queue("default")
            yield world
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
