"""Watches enqueue keys of jobs; workers take them, reconcile, and have the actions performed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.api.pytorchjob import InvalidJob, PyTorchJob, parse
from volcano_elastic.kube.client import ApiError, Conflict, Invalid
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.kube.work_queue import WorkQueue
from volcano_elastic.operator.cluster import Cluster, job_key
from volcano_elastic.operator.executor import Executor, NameTaken
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.pytorchjob.action import Action, Requeue
from volcano_elastic.pytorchjob.observed import Observed, Resize
from volcano_elastic.pytorchjob.reconcile import reconcile, refuse

_log = logging.getLogger(__name__)
_WORKERS = 32
_TIMED_OUT = "no answer in time"


class Controller:
    """One writer a job: a key is never worked on twice at once."""

    def __init__(
        self,
        cluster: Cluster,
        executor: Executor,
        metrics: Metrics,
        *,
        namespace: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster, self._executor, self._metrics = cluster, executor, metrics
        self._namespace, self._clock = namespace, clock
        self._queue = WorkQueue()
        self._resizes: dict[str, tuple[Resize, asyncio.Event]] = {}
        self._admitted: set[str] = set()
        """uids; memory only: a job with pods, or older than 2 s, is not asked."""
        self._parsed: dict[str, tuple[str, PyTorchJob | InvalidJob]] = {}
        cluster.jobs.on_change(self._job_changed)
        cluster.podgroups.on_change(lambda old, new: self._add(key_of(_either(old, new))))
        for informer in (cluster.pods, cluster.services):
            informer.on_change(lambda old, new: self._add(job_key(_either(old, new))))

    def serves(self, obj: Object) -> bool:
        return self._namespace in (None, obj["metadata"].get("namespace"))

    async def run(self) -> None:
        """Until cancelled. Call it when the cluster is synced."""
        for job in self._cluster.jobs:
            self._add(key_of(job))
        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(self._work())

    def close(self) -> None:
        self._queue.close()

    async def carry_out(self, resizes: Mapping[str, Resize], limit: float) -> bool:
        """Hands each job its new size and waits until all are carried out, `limit` seconds at
        most. Sizes of earlier calls that were not carried out are withdrawn."""
        for _, done in self._resizes.values():
            done.set()
        self._resizes = {key: (resize, asyncio.Event()) for key, resize in resizes.items()}
        for key in resizes:
            self._add(key)
        waits = [done.wait() for _, done in self._resizes.values()]
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*waits)
        except TimeoutError:
            return False
        return True

    def admit(self, keys: Iterable[str]) -> None:
        """The first pods of these jobs may be created."""
        for key in keys:
            job = self._cluster.jobs.get(key)
            if job is not None and job["metadata"]["uid"] not in self._admitted:
                self._admitted.add(job["metadata"]["uid"])
                self._add(key)

    def _add(self, key: str) -> None:
        if key and (job := self._cluster.jobs.get(key)) is not None and self.serves(job):
            self._queue.add(key)

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self._add(key_of(new))
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            key = key_of(old)
            self._admitted.discard(old["metadata"]["uid"])
            self._parsed.pop(key, None)
            self._carried_out(key, None)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            try:
                await self._reconcile(key)
            except Conflict as error:
                _log.debug("%s: %s", key, error)
                self._queue.failed(key)
            except (ApiError, NameTaken, aiohttp.ClientError, TimeoutError) as error:
                delay = self._queue.failed(key)
                _log.warning("%s: %s; again in %.1f s", key, error or _TIMED_OUT, delay)
            except Exception:
                delay = self._queue.failed(key)
                _log.exception("%s: reconcile failed; again in %.1f s", key, delay)
            else:
                self._queue.done(key)

    async def _reconcile(self, key: str) -> None:
        job = self._cluster.jobs.get(key)
        if job is None:
            return
        now = self._clock()
        resize, _ = self._resizes.get(key, (None, None))
        actions = self._actions(key, job, resize, now)
        try:
            await self._executor.perform(job, actions, now)
        except Invalid as error:
            self._executor.refused(job, error, now)
            raise
        self._metrics.performed(actions)
        self._carried_out(key, resize)
        for action in actions:
            if isinstance(action, Requeue):
                self._queue.add_after(key, max(0.0, action.after.total_seconds()))

    def _actions(self, key: str, job: Object, resize: Resize | None, now: datetime) -> list[Action]:
        parsed = self._parse(key, job)
        if isinstance(parsed, InvalidJob):
            return refuse(job, parsed.problems, now)
        observed = Observed(
            pods=self._cluster.pods_of(job),
            services=self._cluster.services_of(job),
            podgroup=self._cluster.podgroup_of(job),
            resize=resize,
            admitted=parsed.uid in self._admitted,
        )
        return reconcile(parsed, observed, now)

    def _parse(self, key: str, job: Object) -> PyTorchJob | InvalidJob:
        version = job["metadata"]["resourceVersion"]
        known = self._parsed.get(key)
        if known is not None and known[0] == version:
            return known[1]
        parsed: PyTorchJob | InvalidJob
        try:
            parsed = parse(job)
        except InvalidJob as error:
            parsed = error
        self._parsed[key] = (version, parsed)
        return parsed

    def _carried_out(self, key: str, resize: Resize | None) -> None:
        """`resize` None: whichever it was, there is no more job for it."""
        held = self._resizes.get(key)
        if held is not None and resize in (None, held[0]):
            held[1].set()
            del self._resizes[key]


def _either(old: Object | None, new: Object | None) -> Object:
    found = new if new is not None else old
    assert found is not None
    return found
