"""Watches enqueue keys of jobs; workers take them, reconcile, and have the actions performed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.api.brain_mode import mode_of
from volcano_elastic.api.pytorchjob import InvalidJob, PyTorchJob, parse
from volcano_elastic.api.queue_policy import LeaveNodes, QueuePolicy, Stragglers
from volcano_elastic.api.scale_plan import ScalePlan
from volcano_elastic.kube.client import ApiError, Conflict
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.kube.work_queue import WorkQueue
from volcano_elastic.operator.cluster import Cluster, job_key
from volcano_elastic.operator.executor import Executor, NameTaken
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.handover import Handover
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.memory_kills import MemoryKills
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.server_loads import ServerLoads
from volcano_elastic.operator.survivors import Survivors
from volcano_elastic.operator.token import BadKey
from volcano_elastic.pytorchjob import at_start, servers
from volcano_elastic.pytorchjob.action import Action, Requeue
from volcano_elastic.pytorchjob.guard import refuse
from volcano_elastic.pytorchjob.observed import Observed, Resize
from volcano_elastic.pytorchjob.out_of_memory import shortages
from volcano_elastic.pytorchjob.reconcile import reconcile
from volcano_elastic.pytorchjob.settings import DEFAULTS, Settings

_log = logging.getLogger(__name__)
_WORKERS = 32
# Each change of one of a job's pods is a reason to look at all of them: the loop is everybody's, so
# a job that takes long to decide about leaves most of it to the others.
_REST_PER_DECISION = 3.0
_QUICK_SECONDS = 0.01
_TIMED_OUT = "no answer in time"


class Controller:
    """One writer a job: a key is never worked on twice at once."""

    def __init__(
        self,
        cluster: Cluster,
        executor: Executor,
        metrics: Metrics,
        handover: Handover,
        lost_pods: LostPods,
        failed_nodes: FailedNodes,
        survivors: Survivors,
        *,
        policy_of: Callable[[str], QueuePolicy] = QueuePolicy,
        plan_of: Callable[[str], ScalePlan | None] = lambda key: None,
        server_loads: ServerLoads | None = None,
        memory_kills: MemoryKills | None = None,
        to_leave: Callable[[], Mapping[str, str]] = dict,
        settings: Settings = DEFAULTS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster, self._executor, self._metrics = cluster, executor, metrics
        self._handover, self._policy_of, self._plan_of = handover, policy_of, plan_of
        self._settings, self._clock = settings, clock
        self._lost_pods, self._failed_nodes, self._to_leave = lost_pods, failed_nodes, to_leave
        self._survivors, self._server_loads = survivors, server_loads
        self._memory_kills = memory_kills
        self._queue: WorkQueue | None = None
        """None while somebody else leads: `run` begins with all jobs anyway."""
        self._parsed: dict[str, tuple[str, PyTorchJob | InvalidJob]] = {}
        handover.on_news(self._add)
        lost_pods.on_news(self._add)
        failed_nodes.on_news(self._add)
        survivors.on_news(self._add)
        if server_loads is not None:
            server_loads.on_news(self._add)
        if memory_kills is not None:
            memory_kills.on_news(self._add)
        cluster.jobs.on_change(self._job_changed)
        for named in (cluster.podgroups, cluster.autoscalers):
            named.on_change(lambda old, new: self._add(key_of(_either(old, new))))
        cluster.scale_plans.on_change(lambda old, new: self._plan_changed(_either(old, new)))
        for informer in (cluster.pods, cluster.services):
            informer.on_change(lambda old, new: self._add(job_key(_either(old, new))))

    async def run(self) -> None:
        """Until cancelled; may be called again then. Call it when the cluster is synced."""
        queue = self._queue = WorkQueue(on_take=self._metrics.taken)
        self._cluster.watch_evictions(on=True)
        try:
            for job in self._cluster.jobs:
                self._add(key_of(job))
            async with asyncio.TaskGroup() as group:
                for _ in range(_WORKERS):
                    group.create_task(self._work(queue))
        finally:
            self._queue = None
            self._cluster.watch_evictions(on=False)
            queue.close()
            # Planned under what was known then; who leads next plans anew.
            self._handover.abandon()

    def due(self) -> int:
        """Return how many jobs no worker has taken up yet."""
        return len(self._queue) if self._queue is not None else 0

    def _add(self, key: str) -> None:
        if self._queue is None or not key:
            return
        if (job := self._cluster.jobs.get(key)) is not None and self._cluster.serves(job):
            self._queue.add(key)

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self._add(key_of(new))
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            key = key_of(old)
            self._parsed.pop(key, None)
            self._handover.gone(key)

    def _plan_changed(self, plan: Object) -> None:
        owner = (plan.get("spec") or {}).get("ownerJob")
        if owner:
            self._add(f"{plan['metadata'].get('namespace', 'default')}/{owner}")

    async def _work(self, queue: WorkQueue) -> None:
        while True:
            key = await queue.take()
            began, outcome = time.monotonic(), "failed"
            try:
                again, rest = await self._reconcile(key)
            except Conflict as error:
                outcome = "conflict"
                _log.debug("%s: %s", key, error)
                queue.failed(key)
            except (ApiError, NameTaken, BadKey, aiohttp.ClientError, TimeoutError) as error:
                delay = queue.failed(key)
                _log.warning("%s: %s; again in %.1f s", key, error or _TIMED_OUT, delay)
            except Exception:
                delay = queue.failed(key)
                _log.exception("%s: reconcile failed; again in %.1f s", key, delay)
            else:
                outcome = "done"
                queue.done(key, rest)
                if again is not None:
                    queue.add_after(key, again)
            self._metrics.reconciled(outcome, time.monotonic() - began)

    async def _reconcile(self, key: str) -> tuple[float | None, float]:
        """Return the seconds after which to look again even if nothing changes, and before which
        not to."""
        job = self._cluster.jobs.get(key)
        if job is None:
            return None, 0.0
        now = self._clock()
        resize = self._handover.resize_of(key)
        # Of this thread: a machine that is busy with others makes no job dearer.
        began = time.thread_time()
        evicted = self._cluster.evicted_of(job)
        actions = self._actions(key, job, resize, now, evicted)
        rest = _rest(time.thread_time() - began)
        try:
            await self._executor.perform(job, actions, now)
        except Conflict:
            # The plan saw the job as it no longer is.
            if resize is not None:
                self._handover.stale(key, resize)
            raise
        self._cluster.forget(job, evicted)
        self._metrics.performed(actions)
        if resize is not None:
            end = self._handover.done if self._has(key, resize) else self._handover.stale
            end(key, resize)
        if evicted:
            # The size has followed them; now others may come in their places.
            return 0.0, rest
        delays = [action.after.total_seconds() for action in actions if isinstance(action, Requeue)]
        return max(0.0, min(delays)) if delays else None, rest

    def _actions(
        self,
        key: str,
        job: Object,
        resize: Resize | None,
        now: datetime,
        evicted: tuple[Object, ...] = (),
    ) -> list[Action]:
        parsed = self._parse(key, job)
        if isinstance(parsed, InvalidJob):
            return refuse(job, parsed.problems, self._cluster.pods_of(job), now)
        policy = self._policy_of(parsed.queue)
        losses = self._lost_pods.of(parsed)
        pods, loads = self._cluster.pods_of(job), self._server_loads
        kills = self._memory_kills
        observed = Observed(
            pods=(*pods, *evicted),
            services=self._cluster.services_of(job),
            podgroup=self._cluster.podgroup_of(job),
            autoscaler=self._cluster.autoscaler_of(job),
            resize=resize,
            admission_wait=self._handover.wait(parsed, policy, now),
            protect=policy.shrink.protect,
            grace=policy.shrink.grace,
            lost=losses.lost,
            lost_at=losses.look_at,
            shortages=shortages(
                *(parsed, pods, self._cluster.nodes, now),
                frozenset() if kills is None else kills.of(parsed),
                policy.brain.most_memory,
            ),
            at_start=at_start.decide(
                parsed,
                mode_of(parsed.annotations, policy.brain.mode),
                self._cluster.nodes,
                now,
                pods=bool(pods),
                plan=self._plan_of(key),
            ),
            servers=servers.decide(
                parsed,
                self._plan_of(key),
                loads.count(parsed) if loads is not None else None,
                pods=bool(pods),
                move=loads.to_move(parsed) if loads is not None else frozenset(),
            ),
            failed_nodes=self._failed_nodes.of(parsed),
            exclude_for=policy.nodes.exclude_for,
            rebalances=policy.nodes.stragglers is Stragglers.REBALANCE,
            failure_rules=self._settings.failure_rules,
            needs_first=self._survivors.needed(parsed),
            to_leave={
                **(self._to_leave() if policy.nodes.leave is LeaveNodes.ON_SIGNAL else {}),
                **(loads.to_avoid(parsed) if loads is not None else {}),
            },
        )
        return reconcile(parsed, observed, now, self._settings)

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

    def _has(self, key: str, resize: Resize) -> bool:
        """Return whether the job's durable size is what was decided."""
        status = (self._cluster.jobs.get(key) or {}).get("status") or {}
        return bool((status.get("elastic") or {}).get("desired") == resize.new)


def _rest(seconds: float) -> float:
    """Return for how long others come first after a decision that took so long."""
    return _REST_PER_DECISION * seconds if seconds > _QUICK_SECONDS else 0.0


def _either(old: Object | None, new: Object | None) -> Object:
    found = new if new is not None else old
    assert found is not None
    return found
