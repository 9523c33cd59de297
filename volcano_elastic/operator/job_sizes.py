"""Writes the planned sizes of jobs of other kinds, and tells why; their own controllers do the
rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

import aiohttp

from volcano_elastic.adapters import quota_tree, resize
from volcano_elastic.adapters.other_job import OtherJob
from volcano_elastic.kube import event, resource
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.resource import Object
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.executor import COMPONENT, is_refusal
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.queue_policy.decision import Decision

_log = logging.getLogger(__name__)
_UNREACHED = (ApiError, aiohttp.ClientError, TimeoutError)
REFUSED_FOR = timedelta(minutes=10)
"""A size that the API server won't have is not asked for again before, unless the job's spec has
changed."""
NOT_ADMITTED = "NotAdmitted"
ADMITTED_WITHIN = timedelta(seconds=60)
"""A size that Kueue has not admitted by then is taken back: what waits for quota may keep others
of its queue waiting."""


class JobSizes:
    """The answer of every write enters the informers at once, as the executor's do."""

    def __init__(self, cluster: Cluster, builder: SnapshotBuilder) -> None:
        self._cluster, self._builder = cluster, builder
        self._refused: dict[str, tuple[OtherJob, datetime]] = {}
        """By key, with when it was."""
        self._told: dict[str, tuple[str, str]] = {}
        """Problems that have had their event: uid and message by key."""

    async def carry_out(
        self, decisions: Mapping[str, Decision], now: datetime, limit: float
    ) -> frozenset[str]:
        """Writes the sizes, and tells of jobs that can't be sized; `limit` seconds at most.

        Returns:
            Keys of the jobs that don't have their size.
        """
        self._ask_again(now)
        overdue = [key for key in self._overdue(now) if key not in decisions]
        undone = set(decisions)

        async def one(key: str, decision: Decision) -> None:
            if await self._write(key, decision, now):
                undone.discard(key)

        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(
                    *(one(key, decision) for key, decision in decisions.items()),
                    *(self._take_back(key, now) for key in overdue),
                    self._tell_problems(now),
                )
        except TimeoutError:
            _log.warning("no answer in time: %s", ", ".join(sorted(undone)) or "events")
        return frozenset(undone)

    def _overdue(self, now: datetime) -> list[str]:
        """Return the jobs that ask Kueue for more than it has admitted in time."""
        if self._builder.kueue is None:
            return []
        view, found = self._builder.kueue.view(), []
        for key in self._builder.others.of_kueue():
            waiting = quota_tree.waiting_slice(view, key)
            if waiting is not None and now >= waiting.created + ADMITTED_WITHIN:
                found.append(key)
        return found

    async def _take_back(self, key: str, now: datetime) -> None:
        assert self._builder.kueue is not None
        job = self._builder.others.jobs[key]
        held = quota_tree.admitted_pods(self._builder.kueue.view(), key)
        if held is None or not 0 < held < job.size:
            return
        message = (
            f"Kueue has not admitted {job.size} pods within {ADMITTED_WITHIN.total_seconds():g} s; "
            f"back to the {held} that it has, and no more for {REFUSED_FOR.total_seconds():g} s"
        )
        body = resize.patch(job, held, reason=NOT_ADMITTED, message=message, now=now)
        meta, informer = job.obj["metadata"], self._cluster.others[job.adapter.kind]
        try:
            answer = await self._cluster.client.patch(
                informer.resource, meta["name"], meta["namespace"], body
            )
        except _UNREACHED as error:
            _log.info("%s: %s", key, error or type(error).__name__)
            return
        informer.note_write(answer)
        if key in self._builder.others.jobs:
            self._refused[key] = (self._builder.others.jobs[key], now)
            self._builder.hold_size(key, held=True, shrinks=True)
        await self._tell(answer, NOT_ADMITTED, message, now)

    async def _write(self, key: str, decision: Decision, now: datetime) -> bool:
        job = self._builder.others.jobs.get(key)
        if job is None:
            return False
        if decision.new == job.size:
            return True  # which pods leave is not ours to say
        reason = str(decision.reason)
        body = resize.patch(job, decision.new, reason=reason, message=decision.message, now=now)
        meta, informer = job.obj["metadata"], self._cluster.others[job.adapter.kind]
        try:
            answer = await self._cluster.client.patch(
                informer.resource, meta["name"], meta["namespace"], body
            )
        except _UNREACHED as error:
            if not is_refusal(error):
                _log.info("%s: %s", key, error or type(error).__name__)
                return False
            self._refused[key] = (job, now)
            self._builder.hold_size(key, held=True)
            message = f"{job.size} -> {decision.new} ({reason}): {error}"
            await self._tell(job.obj, "ResizeRefused", message, now, warning=True)
            return False
        informer.note_write(answer)
        held, after = self._refused.get(key), self._builder.others.jobs.get(key)
        if held is not None and after is not None:
            # Our own change of its spec is no reason to ask again.
            self._refused[key] = (after, held[1])
        await self._tell(answer, reason, decision.message, now)
        return True

    def _ask_again(self, now: datetime) -> None:
        jobs = self._builder.others.jobs
        for key, (refused, at) in list(self._refused.items()):
            job = jobs.get(key)
            same = job is not None and (job.uid, job.generation) == (
                refused.uid,
                refused.generation,
            )
            if not same or now >= at + REFUSED_FOR:
                del self._refused[key]
                self._builder.hold_size(key, held=False)

    async def _tell_problems(self, now: datetime) -> None:
        problems = self._builder.others.problems
        for key in self._told.keys() - problems.keys():
            del self._told[key]
        for key, (obj, message) in list(problems.items()):
            once = (obj["metadata"].get("uid", ""), message)
            if self._told.get(key) != once:
                self._told[key] = once
                await self._tell(obj, "NotElastic", message, now, warning=True)

    async def _tell(
        self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False
    ) -> None:
        body = event.make(
            about, reason=reason, message=message, now=now, component=COMPONENT, warning=warning
        )
        try:
            await self._cluster.client.create(resource.EVENTS, body)
        except _UNREACHED as error:
            _log.warning("event %s was not recorded: %s", reason, error)
