"""Performs a reconcile's actions: stage after stage, those of a stage together, idempotently."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import aiohttp

from volcano_elastic.api import moment
from volcano_elastic.kube import event, resource
from volcano_elastic.kube.client import AlreadyExists, ApiError, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PYTORCHJOBS, Object, key_of
from volcano_elastic.operator.cluster import Cluster, controlled_by, job_key
from volcano_elastic.operator.token import BadKey, Tokens
from volcano_elastic.pytorchjob import coexistence
from volcano_elastic.pytorchjob.action import (
    Action,
    CreateAutoscaler,
    CreatePod,
    CreatePodGroup,
    CreateSecret,
    CreateService,
    DeleteAutoscaler,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    PatchAutoscaler,
    PatchPod,
    PatchPodGroup,
    PatchStatus,
    Requeue,
    ResizePod,
    Stage,
)
from volcano_elastic.pytorchjob.environment import TOKEN_KEY
from volcano_elastic.pytorchjob.label import JOB_NAME

_log = logging.getLogger(__name__)
COMPONENT = coexistence.US
# Requests of one job at once. A huge job's thousands must not queue before those of a small one
# in the client's connection pool, which is served in order.
AT_ONCE = 32
# Events of so many jobs at once: the rest wait for them, so that pods need not.
_TELLERS = 8
# A failure is tried again sooner than it need be told again.
_FAILURE_REPORTED_EVERY = timedelta(minutes=1)
# The garbage collector takes seconds for what a deleted job leaves; longer is worth a word.
_COLLECTED = timedelta(seconds=30)
_LEAVING = "is being deleted; waiting for it to go"
_EARLIER = (
    "is left of an earlier PyTorchJob of this name; waiting for the garbage collector to take it"
)


class NameTaken(Exception):
    """An object that is not the job's bears a name that it needs."""

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing
        """It is on its way out."""


class Executor:
    """The answer of every write enters the informers at once, so that the next reconcile does
    not act on a stale read.

    `perform` raises ApiError, NameTaken, BadKey, aiohttp.ClientError or TimeoutError: the first
    that failed of a stage, when the others of that stage are done; later stages have not begun
    then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = cluster.client
        self.tokens = Tokens(cluster.client)
        self._unsent: dict[str, deque[Object]] = {}
        """By job's uid, its events that are not told yet: in order, whoever reads them later."""
        self._sending: set[asyncio.Task[None]] = set()
        self._tellers = asyncio.Semaphore(_TELLERS)
        self._sent: dict[str, dict[str, tuple[str, datetime]]] = {}
        """By job's uid and reason, the last of the events that would repeat themselves."""
        self._not_resized: dict[str, dict[str, Object]] = {}
        """By job's uid and pod's, the resizes that the API server refused."""
        cluster.jobs.on_change(self._forget)

    async def perform(self, job: Object, actions: Sequence[Action], now: datetime) -> None:
        for stage in Stage:
            due = [action for action in actions if action.stage is stage]
            if stage is Stage.TELL:
                for action in due:
                    if isinstance(action, EmitEvent):
                        self._send(job, action, now)
                return
            if not due:
                continue
            answers = await _together(self._do(job, action, now) for action in due)
            failures = [
                (action, answer)
                for action, answer in zip(due, answers, strict=True)
                if isinstance(answer, BaseException)
            ]
            if failures:
                self._report_failures(job, failures, now)
            for action, error in failures:
                # Without an autoscaler of its own the job still goes on.
                if not (isinstance(action, CreateAutoscaler) and isinstance(error, NameTaken)):
                    raise error

    async def settle(self, seconds: float) -> None:
        """Gives events under way that long to be told."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=seconds)

    def _report_failures(
        self, job: Object, failures: Sequence[tuple[Action, BaseException]], now: datetime
    ) -> None:
        """Says what the API server won't have, e.g. beyond a quota: one event for a burst."""
        by_reason: dict[str, list[str]] = {}
        for action, error in failures:
            if is_refusal(error):
                verb, noun = _words(action)
                by_reason.setdefault(f"Failed{verb}{noun}", []).append(str(error))
        sent = self._sent.setdefault(job["metadata"]["uid"], {})
        for reason, messages in by_reason.items():
            last = sent.get(reason)
            if last is None or now >= last[1] + _FAILURE_REPORTED_EVERY:
                more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
                sent[reason] = (messages[0], now)
                self._send(job, EmitEvent(reason, f"Error: {messages[0]}{more}", True), now)

    def _forget(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is None:
            self._sent.pop(old["metadata"]["uid"], None)
            self._not_resized.pop(old["metadata"]["uid"], None)

    def _send(self, job: Object, action: EmitEvent, now: datetime) -> None:
        if action.deduplicated:
            sent = self._sent.setdefault(job["metadata"]["uid"], {})
            last = sent.get(action.reason)
            if last is not None and last[0] == action.message:
                return
            sent[action.reason] = (action.message, now)
        body = event.make(
            job,
            reason=action.reason,
            message=action.message,
            now=now,
            component=COMPONENT,
            warning=action.warning,
        )
        uid = job["metadata"]["uid"]
        if uid in self._unsent:
            self._unsent[uid].append(body)
            return
        self._unsent[uid] = deque([body])
        task = asyncio.get_running_loop().create_task(self._send_all(uid))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_all(self, uid: str) -> None:
        unsent = self._unsent[uid]
        try:
            while unsent:
                async with self._tellers:
                    await self._emit(unsent.popleft())
        finally:
            del self._unsent[uid]

    async def _emit(self, body: Object) -> None:
        try:
            await self._client.create(resource.EVENTS, body)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            _log.warning("event %s was not recorded: %s", body["reason"], error)

    def _do(self, job: Object, action: Action, now: datetime) -> Coroutine[Any, Any, None]:
        cluster, name = self._cluster, job["metadata"]["name"]
        match action:
            case CreatePod(body):
                return self._create(cluster.pods, job, body, now)
            case CreateSecret(body):
                return self._create_token(job, body)
            case CreateService(body):
                return self._create(cluster.services, job, body, now)
            case CreatePodGroup(body):
                return self._create(cluster.podgroups, job, body, now)
            case CreateAutoscaler(body):
                return self._create(cluster.autoscalers, job, body, now)
            case PatchAutoscaler(autoscaler, body):
                return self._patch(cluster.autoscalers, job, autoscaler, body)
            case PatchPod(pod, body):
                return self._patch(cluster.pods, job, pod, body)
            case ResizePod(pod, uid, body):
                return self._resize(job, pod, uid, body, now)
            case PatchPodGroup(podgroup, body):
                return self._patch(cluster.podgroups, job, podgroup, body)
            case PatchStatus(status):
                # A Conflict if another job bears the name by now, or somebody changed this one
                # since the decision: a size is only true of the job that was seen.
                seen = {field: job["metadata"][field] for field in ("uid", "resourceVersion")}
                body = {"metadata": seen, "status": status}
                return self._patch(cluster.jobs, job, name, body, subresource="status")
            case DeletePod(pod, uid, grace):
                seconds = None if grace is None else int(grace.total_seconds())
                return self._delete(cluster.pods, job, pod, uid, grace=seconds)
            case DeleteService(service, uid):
                return self._delete(cluster.services, job, service, uid)
            case DeletePodGroup(podgroup, uid):
                return self._delete(cluster.podgroups, job, podgroup, uid)
            case DeleteAutoscaler(autoscaler, uid):
                return self._delete(cluster.autoscalers, job, autoscaler, uid)
            case DeleteJob():
                uid = job["metadata"]["uid"]
                return self._delete(cluster.jobs, job, name, uid, propagation="Background")
            case EmitEvent() | Requeue():
                raise TypeError(f"{action} is nothing to wait for")

    async def _create_token(self, job: Object, body: Object) -> None:
        token = await self.tokens.of(job["metadata"]["uid"])
        encoded = base64.b64encode(token.encode()).decode()
        # Its name has part of the uid; one that is there is this job's.
        with contextlib.suppress(AlreadyExists):
            await self._client.create(resource.SECRETS, {**body, "data": {TOKEN_KEY: encoded}})

    async def _create(self, informer: Informer, job: Object, body: Object, now: datetime) -> None:
        meta = body["metadata"]
        try:
            informer.note_write(await self._client.create(informer.resource, body))
        except AlreadyExists:
            try:
                found = await self._client.get(informer.resource, meta["name"], meta["namespace"])
            except NotFound:
                found = {"metadata": {"deletionTimestamp": "just now"}}
            leaving = bool(found["metadata"].get("deletionTimestamp"))
            if leaving or not controlled_by(found, job):
                earlier = _is_of_an_earlier(job, found)
                raise NameTaken(
                    f"{informer.resource.kind} {meta['namespace']}/{meta['name']} "
                    + (_LEAVING if leaving else _EARLIER if earlier else _claimed(found)),
                    passing=leaving or (earlier and now < _created(job) + _COLLECTED),
                ) from None
            label, name = JOB_NAME, job["metadata"]["name"]
            if label in body["metadata"].get("labels", {}) and job_key(found) != key_of(job):
                # Whoever took it away hid the object from us and from everybody's selectors.
                raise NameTaken(
                    f"{informer.resource.kind} {meta['namespace']}/{meta['name']} is the job's but "
                    f"lacks its label {label}={name}; restore it, or delete the object",
                    passing=False,
                ) from None
            informer.note_write(found)

    async def _patch(
        self,
        informer: Informer,
        job: Object,
        name: str,
        body: Object,
        subresource: str | None = None,
    ) -> None:
        namespace = job["metadata"]["namespace"]
        known = informer.get(f"{namespace}/{name}")
        try:
            informer.note_write(
                await self._client.patch(
                    informer.resource, name, namespace, body, subresource=subresource
                )
            )
        except NotFound:
            # Before the answer is read here, another object may bear the name, and be known.
            if known is not None:
                informer.drop(known)

    async def _resize(self, job: Object, name: str, uid: str, body: Object, now: datetime) -> None:
        refused = self._not_resized.setdefault(job["metadata"]["uid"], {})
        if refused.get(uid) == body:
            return
        pods, seen = self._cluster.pods, {"metadata": {"uid": uid}, **body}
        namespace = job["metadata"]["namespace"]
        try:
            answer = await self._client.patch(
                pods.resource, name, namespace, seen, subresource="resize"
            )
        except ApiError as error:
            # Before Kubernetes 1.33 there is no such subresource: that says nothing of the pod.
            if not (is_refusal(error) or isinstance(error, NotFound)):
                raise
            refused[uid] = body
            message = f"Pod {name} gets it when it is made anew: {error}"
            self._send(job, EmitEvent("ResizeRefused", message, True, deduplicated=True), now)
        else:
            pods.note_write(answer)

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
        except NotFound:
            # A Conflict may mean that another object bears the name now, but also a webhook's
            # refusal: the watch tells which.
            self._gone(informer, key, uid)
            return
        known = informer.get(key)
        if answer.get("kind") == "Status" or not answer.get("metadata", {}).get("uid"):
            if known is None or not known["metadata"].get("finalizers"):
                self._gone(informer, key, uid)
        elif grace == 0 and not answer["metadata"].get("finalizers"):
            self._gone(informer, key, uid)
        elif answer["metadata"].get("deletionTimestamp"):
            informer.note_write(answer)

    def _gone(self, informer: Informer, key: str, uid: str) -> None:
        known = informer.get(key)
        if known is not None and known["metadata"].get("uid") == uid:
            informer.drop(known)


async def _together(
    works: Iterable[Coroutine[Any, Any, None]],
) -> list[BaseException | None]:
    """Run all, AT_ONCE at a time; return what each raised, in order."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(work: Coroutine[Any, Any, None]) -> None:
        async with free:
            await work

    return await asyncio.gather(*(one(work) for work in works), return_exceptions=True)


def _is_of_an_earlier(job: Object, found: Object) -> bool:
    """Controlled by one that had the job's name before it."""
    owner = _controller(found)
    if owner is None:
        return False
    names = (owner.get("kind"), owner.get("name"))
    return names == (PYTORCHJOBS.kind, job["metadata"]["name"]) and not controlled_by(found, job)


def _claimed(found: Object) -> str:
    owner = _controller(found)
    whose = f"{owner.get('kind')} {owner.get('name')}" if owner else "nobody"
    return (
        f"exists and belongs to {whose}; waiting for it to go: delete it, or create the job under "
        "another name"
    )


def _controller(obj: Object) -> Object | None:
    references: list[Object] = obj["metadata"].get("ownerReferences") or []
    return next((one for one in references if one.get("controller")), None)


def _created(job: Object) -> datetime:
    return moment.parse(job["metadata"]["creationTimestamp"])


def _words(action: Action) -> tuple[str, str]:
    """`CreatePod` is ("Create", "Pod")."""
    name = type(action).__name__
    verb = next(verb for verb in ("Create", "Patch", "Delete") if name.startswith(verb))
    return verb, name.removeprefix(verb)


def is_refusal(error: BaseException) -> bool:
    """Return True if the same request will fail again until somebody changes something: it was no
    race and no breakdown."""
    if isinstance(error, NameTaken):
        return not error.passing
    if isinstance(error, BadKey):
        return True
    return (
        isinstance(error, ApiError)
        and 400 <= error.code < 500
        and error.code not in (404, 408, 409, 410, 429)
    )
