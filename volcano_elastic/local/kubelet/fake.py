"""Pods that only walk through their phases; no process is started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.kube.client import ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PODS, Object, key_of
from volcano_elastic.kube.work_queue import WorkQueue
from volcano_elastic.local.kubelet import fault
from volcano_elastic.local.kubelet.address import AddressBook
from volcano_elastic.local.kubelet.container import Container, Running, Terminated
from volcano_elastic.local.kubelet.pod_status import Verdict, pod_status

_log = logging.getLogger(__name__)

EXIT_CODE = "local.volcano-elastic.io/exit-code"
RUN_SECONDS = "local.volcano-elastic.io/run-seconds"
LEAVE_SECONDS = "local.volcano-elastic.io/leave-seconds"
_WORKERS = 32


class FakePods:
    """Running at once; Succeeded or Failed if annotated so; gone as soon as deleted, or as long
    afterwards as annotated."""

    def __init__(
        self, client: Client, pods: Informer, nodes: frozenset[str], down: Set[str] = frozenset()
    ) -> None:
        self._client, self._pods, self._nodes, self._down = client, pods, nodes, down
        self._addresses = AddressBook()
        self._queue = WorkQueue()
        self._told: dict[str, float] = {}
        """When a pod that takes its time was told to leave, by uid."""
        pods.on_change(self._on_change)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        if new is not None and new["spec"].get("nodeName") in self._nodes:
            self._queue.add(key_of(new))

    def on_outage(self, name: str, down: bool) -> None:
        """A node is up again: its pods are looked at."""
        for pod in self._pods:
            if not down and pod["spec"].get("nodeName") == name:
                self._queue.add(key_of(pod))

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_WORKERS):
                    group.create_task(self._work())
        finally:
            self._queue.close()

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self._advance(key)
            except (NotFound, Conflict):
                self._queue.done(key)
            except (ApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
                delay = self._queue.failed(key)
                _log.warning("pod %s: %s; again in %.1f s", key, error, delay)
            except Exception:
                _log.exception("pod %s can't be walked through its phases", key)
                self._queue.done(key)
            else:
                self._queue.done(key)

    async def _advance(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None or pod["spec"]["nodeName"] in self._down:
            return
        meta = pod["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        if meta.get("deletionTimestamp"):
            if (stays := self._stays(meta)) > 0:
                self._queue.add_after(key, stays)
                return
            self._told.pop(meta["uid"], None)
            await self._client.delete(
                PODS, name, namespace, uid=meta["uid"], grace_period_seconds=0
            )
            return
        now = datetime.now(UTC)
        wait = due_in(pod, now)
        if wait is None:
            return
        if wait > 0:
            self._queue.add_after(key, wait)
            return
        status = next_status(pod, self._addresses.of(namespace, name), now)
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        answer = await self._client.patch(PODS, name, namespace, body, subresource="status")
        self._pods.put(answer)

    def _stays(self, meta: Object) -> float:
        """Seconds that a deleted pod is still to be there."""
        seconds = float((meta.get("annotations") or {}).get(LEAVE_SECONDS, 0))
        if not seconds:
            return 0.0
        now = asyncio.get_running_loop().time()
        return self._told.setdefault(meta["uid"], now) + seconds - now


def due_in(pod: Object, now: datetime) -> float | None:
    """Seconds until the pod's next phase is due; None if it stays in the one it has."""
    status = pod.get("status", {})
    match status.get("phase", "Pending"):
        case "Pending":
            return 0.0
        case "Running":
            if fatal(pod) or _unready(pod):
                return 0.0
            annotations = pod["metadata"].get("annotations") or {}
            if EXIT_CODE not in annotations and RUN_SECONDS not in annotations:
                return None
            started = datetime.fromisoformat(status["startTime"])
            seconds = float(annotations.get(RUN_SECONDS, 0))
            return max(seconds - (now - started).total_seconds(), 0.0)
    return None


def fatal(pod: Object) -> fault.PodFault | None:
    """The fault that ends a pod which only pretends to run, if it has one."""
    wanted = fault.parse(fault.annotated(pod))
    return None if wanted is None or wanted.kind == "freeze" else wanted


def _unready(pod: Object) -> bool:
    """Its containers are ready, but its node was taken for lost."""
    found = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions") or ()}
    held = pod["spec"].get("readinessGates") or found.get("ContainersReady") != "True"
    return not held and found.get("Ready") != "True"


def next_status(pod: Object, address: str, now: datetime) -> Object:
    """Pending becomes Running; Running becomes what the exit code says, or ready again where
    its node was lost meanwhile."""
    containers = [Container(spec) for spec in pod["spec"]["containers"]]
    status = pod.get("status", {})
    begun = status.get("phase") == "Running"
    ends = begun and bool(fatal(pod) or not _unready(pod))
    started = datetime.fromisoformat(status["startTime"]) if begun else now
    code = int((pod["metadata"].get("annotations") or {}).get(EXIT_CODE, 0))
    wrong = fatal(pod) if ends else None
    if wrong:
        code = 137
    reason = "OOMKilled" if wrong and wrong.kind == "oom" else "Error" if code else "Completed"
    verdict = Verdict("Evicted", "by request", disruption=True)
    for container in containers:
        container.state = Terminated(code, reason, started, now) if ends else Running(started)
    return pod_status(
        pod,
        [],
        containers,
        address=address,
        started=started,
        now=now,
        stopped=ends,
        verdict=verdict if wrong and wrong.kind == "evict" else None,
    )
