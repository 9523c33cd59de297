"""Pods that only walk through their phases; no process is started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from datetime import UTC, datetime

import aiohttp

from embedded_cluster.kubelet import fault
from embedded_cluster.kubelet.address import AddressBook
from embedded_cluster.kubelet.container import Container, Running, Terminated
from embedded_cluster.kubelet.pod_status import PodFailure, pod_status
from volcano_elastic.api.pod import condition
from volcano_elastic.kube.client import ApiError, Client, Conflict, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PODS, Object, key_of
from volcano_elastic.kube.work_queue import WorkQueue

_log = logging.getLogger(__name__)

EXIT_CODE = "local.volcano-elastic.io/exit-code"
RUN_SECONDS = "local.volcano-elastic.io/run-seconds"
LEAVE_SECONDS = "local.volcano-elastic.io/leave-seconds"
_WORKERS = 32


class FakePods:
    """Running at once; Succeeded or Failed if annotated so; gone as soon as deleted, or as long
    afterwards as annotated."""

    def __init__(
        self, client: Client, pods: Informer, nodes: frozenset[str], silent: Set[str] = frozenset()
    ) -> None:
        self._client, self._pods, self._nodes, self._silent = client, pods, nodes, silent
        self._addresses = AddressBook()
        self._queue = WorkQueue()
        self._told: dict[str, float] = {}
        """When a pod that takes its time was told to leave, by uid."""
        pods.on_change(self._on_change)
        for pod in pods:
            # Nobody tells of those that were listed before.
            self._on_change(None, pod)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        if new is not None and new["spec"].get("nodeName") in self._nodes:
            self._queue.add(key_of(new))

    def on_outage(self, name: str, kind: fault.NodeFaultKind | None) -> None:
        """A node is up again: its pods are looked at."""
        for pod in self._pods:
            if kind is None and pod["spec"].get("nodeName") == name:
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
        if pod is None or pod["spec"]["nodeName"] in self._silent:
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
        status = next_status(pod, self._addresses.of(namespace, name), datetime.now(UTC))
        if isinstance(status, float):
            self._queue.add_after(key, status)
        elif status is not None:
            body = {"metadata": {"uid": meta["uid"]}, "status": status}
            answer = await self._client.patch(PODS, name, namespace, body, subresource="status")
            self._pods.note_write(answer)

    def _stays(self, meta: Object) -> float:
        """Seconds that a deleted pod is still to be there."""
        seconds = float((meta.get("annotations") or {}).get(LEAVE_SECONDS, 0))
        if not seconds:
            return 0.0
        now = asyncio.get_running_loop().time()
        return self._told.setdefault(meta["uid"], now) + seconds - now


def next_status(pod: Object, address: str, now: datetime) -> Object | float | None:
    """Return the next status of a pod that only pretends to run, or the seconds until it; None:
    nothing more.

    Pending becomes Running; Running becomes what a fault or the exit code says, or ready again
    where its node was lost meanwhile.
    """
    status, annotations = pod.get("status", {}), pod["metadata"].get("annotations") or {}
    phase = status.get("phase", "Pending")
    if phase not in ("Pending", "Running"):
        return None
    start = status.get("startTime") if phase == "Running" else None
    started = datetime.fromisoformat(start) if start else now
    wrong = fault.parse(fault.annotated(pod)) if phase == "Running" else None
    state: Running | Terminated = Running(started)
    if wrong and wrong.kind != "freeze":
        reason = "OOMKilled" if wrong.kind == "oom" else "Error"
        state = Terminated(137, reason, started, now)
    elif phase == "Running" and not _unready(pod):
        if EXIT_CODE not in annotations and RUN_SECONDS not in annotations:
            return None
        left = float(annotations.get(RUN_SECONDS, 0)) - (now - started).total_seconds()
        if left > 0:
            return left
        code = int(annotations.get(EXIT_CODE, 0))
        state = Terminated(code, "Error" if code else "Completed", started, now)
    evicted = PodFailure("Evicted", "by request", disruption=True)
    return pod_status(
        pod,
        [],
        [Container(spec, state=state) for spec in pod["spec"]["containers"]],
        address=address,
        started=started,
        now=now,
        stopped=isinstance(state, Terminated),
        failure=evicted if wrong and wrong.kind == "evict" else None,
    )


def _unready(pod: Object) -> bool:
    """Its containers are ready, but its node was taken for lost."""
    ready, containers = condition(pod, "Ready"), condition(pod, "ContainersReady")
    held = pod["spec"].get("readinessGates") or not containers or containers["status"] != "True"
    return not held and (not ready or ready["status"] != "True")
