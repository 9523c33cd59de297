"""The scheduler's loop: informers, one session at a time, effects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry, Counter

from embedded_cluster.scheduler.cycle import effects_of, session_of
from embedded_cluster.scheduler.executor import Executor
from embedded_cluster.scheduler.observe import Observed, snapshot_of
from embedded_cluster.scheduler.snapshot import Snapshot, TaskStatus
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import NODES, PODGROUPS, PODS, PRIORITYCLASSES, QUEUES, Object
from volcano_elastic.scheduler_conf.configuration import Configuration

_log = logging.getLogger(__name__)
# A gang's pods are created one request after another; waiting a moment sees them together.
_DEBOUNCE = timedelta(milliseconds=30)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Scheduler:
    """Holds no state that matters: killed at any moment, it starts again from the API server."""

    def __init__(
        self,
        client: Client,
        configuration: Configuration,
        *,
        scheduler_names: frozenset[str],
        schedule_period: timedelta,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._configuration = configuration
        self._scheduler_names = scheduler_names
        self._period = schedule_period
        self.registry = CollectorRegistry()
        self._sessions = Counter("scheduler_sessions", "Sessions so far.", registry=self.registry)
        self._clock = clock
        self._changed = asyncio.Event()
        kinds = (NODES, PODS, PODGROUPS, QUEUES, PRIORITYCLASSES)
        self._informers = [Informer(client, resource) for resource in kinds]
        for informer in self._informers:
            informer.on_change(self._on_change)
        self._executor = Executor(client, dict(zip(kinds, self._informers, strict=True)), clock)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        self._changed.set()

    def waits_for(self) -> str:
        """Return the kinds that have not been listed yet; empty once it schedules."""
        return ", ".join(i.resource.plural for i in self._informers if not i.synced.is_set())

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run())
            for informer in self._informers:
                await informer.synced.wait()
            actions = ", ".join(action.name for action in self._configuration.actions)
            _log.info("scheduling; actions: %s", actions)
            while True:
                self._changed.clear()
                again = await self._session()
                await self._change_or(again)
                await asyncio.sleep(_DEBOUNCE.total_seconds())

    async def _change_or(self, again: datetime | None) -> None:
        """Something changed, or it is that time."""
        left = None if again is None else max(0.0, (again - self._clock()).total_seconds())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), left)

    async def _session(self) -> datetime | None:
        """Run a session; return when to look again though nothing changes; None: not before a
        change."""
        now = self._clock()
        self._sessions.inc()
        nodes, pods, groups, queues, classes = self._informers
        bound, evicted = self._executor.bound, self._executor.evicted
        observed = Observed(nodes, pods, groups, queues, classes, bound, evicted)
        snapshot = snapshot_of(observed, self._scheduler_names)
        effects = effects_of(session_of(snapshot, self._configuration, now))
        for effect in effects:
            _log.debug("%s", effect)
        again = next_look(snapshot, now)
        if await self._executor.perform(effects):
            return again
        retry = self._clock() + self._period
        return min(again or retry, retry)


def next_look(snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when time alone may change what a session does: the first protection of a pod that may
    be evicted ends, while another waits. None: it won't."""
    tasks = [task for job in snapshot.jobs for task in job.tasks]
    if not any(task.status is TaskStatus.PENDING for task in tasks):
        return None
    ends = (task.cooling_until for task in tasks if task.preemptable)
    return min((end for end in ends if end and end > now), default=None)
