"""Performs a reconcile's actions: stage after stage, all of a stage at once, idempotently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any

import aiohttp

from volcano_elastic.kube import event, resource
from volcano_elastic.kube.client import AlreadyExists, ApiError, Conflict, Invalid, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import Object
from volcano_elastic.operator.cluster import Cluster, controlled_by
from volcano_elastic.pytorchjob.action import (
    Action,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    PatchPod,
    PatchPodGroup,
    PatchStatus,
    Requeue,
    Stage,
)

_log = logging.getLogger(__name__)
COMPONENT = "volcano-elastic"


class NameTaken(Exception):
    """An object that is not the job's bears a name that it needs."""


class Executor:
    """The answer of every write enters the informers at once, so that the next reconcile does
    not act on a stale read.

    `perform` raises ApiError, NameTaken, aiohttp.ClientError or TimeoutError: the first that
    failed of a stage, when the others of that stage are done; later stages have not begun then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = cluster.client
        self._telling: set[asyncio.Task[None]] = set()

    async def perform(self, job: Object, actions: Sequence[Action], now: datetime) -> None:
        for stage in Stage:
            due = [action for action in actions if action.stage is stage]
            if stage is Stage.TELL:
                for action in due:
                    if isinstance(action, EmitEvent):
                        self._tell(job, action, now)
                return
            # The usual stage has one action or none, and needs no tasks.
            if len(due) == 1:
                await self._do(job, due[0])
            elif due:
                answers = await asyncio.gather(
                    *(self._do(job, action) for action in due), return_exceptions=True
                )
                for answer in answers:
                    if isinstance(answer, BaseException):
                        raise answer

    async def settle(self, seconds: float) -> None:
        """Gives events under way that long to be told."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=seconds)

    def refused(self, job: Object, error: Invalid, now: datetime) -> None:
        """Says that the API server won't have what the job asks for."""
        self._tell(job, EmitEvent("FailedCreatePod", error.message, warning=True), now)

    def _tell(self, job: Object, action: EmitEvent, now: datetime) -> None:
        task = asyncio.get_running_loop().create_task(self._emit(job, action, now))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _emit(self, job: Object, action: EmitEvent, now: datetime) -> None:
        body = event.make(
            job,
            reason=action.reason,
            message=action.message,
            now=now,
            component=COMPONENT,
            warning=action.warning,
        )
        try:
            await self._client.create(resource.EVENTS, body)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("event %s was not recorded: %s", action.reason, error)

    def _do(self, job: Object, action: Action) -> Coroutine[Any, Any, None]:
        cluster, name = self._cluster, job["metadata"]["name"]
        match action:
            case CreatePod(body):
                return self._create(cluster.pods, job, body)
            case CreateService(body):
                return self._create(cluster.services, job, body)
            case CreatePodGroup(body):
                return self._create(cluster.podgroups, job, body)
            case PatchPod(pod, body):
                return self._patch(cluster.pods, job, pod, body)
            case PatchPodGroup(podgroup, body):
                return self._patch(cluster.podgroups, job, podgroup, body)
            case PatchStatus(status):
                # The uid makes it a Conflict if another job bears the name by now.
                uid = job["metadata"]["uid"]
                body = {"metadata": {"uid": uid}, "status": status}
                return self._patch(cluster.jobs, job, name, body, subresource="status")
            case DeletePod(pod, uid, grace):
                seconds = None if grace is None else int(grace.total_seconds())
                return self._delete(cluster.pods, job, pod, uid, grace=seconds)
            case DeleteService(service, uid):
                return self._delete(cluster.services, job, service, uid)
            case DeletePodGroup(podgroup, uid):
                return self._delete(cluster.podgroups, job, podgroup, uid)
            case DeleteJob():
                uid = job["metadata"]["uid"]
                return self._delete(cluster.jobs, job, name, uid, propagation="Background")
            case EmitEvent() | Requeue():
                raise TypeError(f"{action} is nothing to wait for")

    async def _create(self, informer: Informer, job: Object, body: Object) -> None:
        meta = body["metadata"]
        try:
            informer.put(await self._client.create(informer.resource, body))
        except AlreadyExists:
            try:
                found = await self._client.get(informer.resource, meta["name"], meta["namespace"])
            except NotFound:
                found = {"metadata": {"deletionTimestamp": "just now"}}
            if found["metadata"].get("deletionTimestamp") or not controlled_by(found, job):
                raise NameTaken(
                    f"{informer.resource.kind} {meta['namespace']}/{meta['name']} exists and is "
                    f"not this job's, or is being deleted; waiting for it to go"
                ) from None
            informer.put(found)

    async def _patch(
        self,
        informer: Informer,
        job: Object,
        name: str,
        body: Object,
        subresource: str | None = None,
    ) -> None:
        namespace = job["metadata"]["namespace"]
        try:
            informer.put(
                await self._client.patch(
                    informer.resource, name, namespace, body, subresource=subresource
                )
            )
        except NotFound:
            self._gone(informer, f"{namespace}/{name}", None)

    async def _delete(
        self,
        informer: Informer,
        job: Object,
        name: str,
        uid: str,
        *,
        grace: int | None = None,
        propagation: str | None = None,
    ) -> None:
        namespace = job["metadata"]["namespace"]
        key = f"{namespace}/{name}"
        try:
            answer = await self._client.delete(
                informer.resource,
                name,
                namespace,
                uid=uid,
                grace_period_seconds=grace,
                propagation_policy=propagation,
            )
        except (NotFound, Conflict):
            # Conflict: another object bears the name now, so this one has gone.
            self._gone(informer, key, uid)
            return
        known = informer.get(key)
        if answer.get("kind") == "Status" or not answer.get("metadata", {}).get("uid"):
            if known is None or not known["metadata"].get("finalizers"):
                self._gone(informer, key, uid)
        elif grace == 0 and not answer["metadata"].get("finalizers"):
            self._gone(informer, key, uid)
        elif answer["metadata"].get("deletionTimestamp"):
            informer.put(answer)

    def _gone(self, informer: Informer, key: str, uid: str | None) -> None:
        known = informer.get(key)
        if known is not None and uid in (None, known["metadata"].get("uid")):
            informer.drop(known)
