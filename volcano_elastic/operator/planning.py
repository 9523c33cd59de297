"""The planner's loop: a snapshot of the cluster, a plan, the plan carried out, newcomers admitted.

A new snapshot is taken only when the last plan is carried out, and the answers of its writes are
in the informers by then: no plan is made from a state that the previous one is still changing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator import scale_plan_pods
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.failed_nodes import FailedNodes
from volcano_elastic.operator.handover import Handover
from volcano_elastic.operator.job_sizes import JobSizes
from volcano_elastic.operator.lost_pods import LostPods
from volcano_elastic.operator.measurement import Measurement
from volcano_elastic.operator.memory_kills import MemoryKills
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.policy_report import PolicyReport
from volcano_elastic.operator.queue_plugin import watch_queue_plugin
from volcano_elastic.operator.scale_plan_report import ScalePlanReport
from volcano_elastic.operator.server_loads import ServerLoads
from volcano_elastic.operator.snapshot_builder import KINDS, SnapshotBuilder
from volcano_elastic.operator.survivors import Survivors
from volcano_elastic.operator.tracing import Tracing
from volcano_elastic.pytorchjob.observed import Resize
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.snapshot.snapshot import Memory, Snapshot

_log = logging.getLogger(__name__)
# Changes come in bursts; a plan of half a burst would be taken back by the next.
_DEBOUNCE_SECONDS = 0.05
# Cooldowns and grace periods end without any change to be seen.
_AT_LEAST_EVERY_SECONDS = 1.0
_CARRY_OUT_SECONDS = 2.0

MakePlan = Callable[[Snapshot, datetime], Plan]


class Planning:
    """Plans whenever the snapshot changes, and each second; reports and measures beside it.

    Args:
        plugin: by which Volcano divides among queues, capacity or proportion; None: as the
            scheduler's ConfigMap says, else capacity.
        tracing: follows resizes; None: nobody does.
        token_of: the token of the job with this uid; raises as Tokens.of.
        cpu: seconds this thread has computed, by which a plan's cost is told: a machine that is
            busy with others makes no plan dearer.
    """

    def __init__(
        self,
        cluster: Cluster,
        builder: SnapshotBuilder,
        handover: Handover,
        metrics: Metrics,
        *,
        token_of: Callable[[str], Awaitable[str]],
        lost_pods: LostPods,
        failed_nodes: FailedNodes,
        survivors: Survivors,
        plugin: str | None = None,
        tracing: Tracing | None = None,
        server_loads: ServerLoads | None = None,
        memory_kills: MemoryKills | None = None,
        planner: Callable[[], MakePlan] = lambda: Planner().plan,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._cluster, self._builder = cluster, builder
        self._handover, self._metrics = handover, metrics
        self._new_planner, self._clock, self._cpu = planner, clock, cpu
        self._rested = 0.0
        """When the loop has had as long for others as the last plan took, in its own time."""
        self._plan = planner()
        self._tracing = tracing
        self._plugin = plugin
        self._builder.proportion = plugin == "proportion"
        self._report = PolicyReport(cluster.policies, self._builder)
        self._scale_plans = ScalePlanReport(cluster, builder, clock)
        self._measurement = Measurement(
            *(cluster, builder, clock, token_of, lost_pods, failed_nodes, survivors),
            tracing=tracing,
            server_loads=server_loads,
            memory_kills=memory_kills,
        )
        self._sizes = JobSizes(cluster, builder)
        self._changed = asyncio.Event()
        beside = (*cluster.others.values(), *cluster.kueue)
        kinds = {*KINDS, *(informer.resource for informer in beside)}
        for informer in cluster:
            if informer.resource in kinds:
                informer.on_change(self._note)

    async def run(self) -> None:
        """Until cancelled; may be called again then. Call it when the cluster is synced."""
        # Another operator may have led meanwhile.
        self._plan = self._new_planner()
        self._builder.memory = Memory()
        self._report.forget()
        if self._tracing is not None:
            self._tracing.forget()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._plan_again_and_again())
            group.create_task(self._report.run())
            group.create_task(self._scale_plans.run())
            group.create_task(self._measurement.run())
            if self._plugin is None:
                group.create_task(watch_queue_plugin(self._cluster.client, self._note_plugin))

    async def say_stale(self, why: str) -> None:
        """Until cancelled, instead of `run`: the policies say why nothing is planned."""
        self._report.forget()
        self._report.failed(why, self._clock())
        await self._report.run()

    async def _plan_again_and_again(self) -> None:
        failure = ""
        while True:
            self._changed.clear()
            try:
                await self._once()
                failure = ""
            except Exception as error:
                # The jobs go on at their sizes; the next snapshot may be one that can be planned.
                if repr(error) != failure:
                    _log.exception("no plan could be made")
                failure = repr(error)
                # What it keeps between plans may be what is wrong.
                self._plan = self._new_planner()
                self._report.failed(failure, self._clock())
                await asyncio.sleep(_AT_LEAST_EVERY_SECONDS)
            debounce = _DEBOUNCE_SECONDS
            try:
                async with asyncio.timeout(_AT_LEAST_EVERY_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                debounce = 0.0
            # However fast things change, half of the loop is for those who carry plans out. After a
            # quick plan the debounce is rest enough.
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(max(debounce, self._rested - now))

    async def _once(self) -> None:
        now, began = self._clock(), self._cpu()
        try:
            with self._metrics.planning():
                result = self._plan(self._builder.snapshot(), now)
        finally:
            spent = self._cpu() - began
            self._rested = asyncio.get_running_loop().time() + spent
        self._builder.memory = result.memory
        self._metrics.planned(result)
        acting = {d.job: d for d in result.decisions if not d.dry_run}
        for decision in acting.values():
            self._metrics.decided(decision)
            _log.info(
                "%s: %d -> %d, %s: %s",
                decision.job,
                decision.old,
                decision.new,
                decision.reason,
                decision.message,
            )
        others = {key: d for key, d in acting.items() if key in self._builder.others.jobs}
        resizes = {key: _resize(d) for key, d in acting.items() if key not in others}
        if self._tracing is not None:
            self._tracing.end_overdue()
            for key in resizes:
                self._tracing.decided(acting[key], now)
        undone = frozenset[str]().union(
            *await asyncio.gather(
                self._handover.carry_out(resizes | self._named(acting), _CARRY_OUT_SECONDS),
                self._sizes.carry_out(others, now, _CARRY_OUT_SECONDS),
            )
        )
        if self._tracing is not None:
            for key in resizes:
                self._tracing.carried_out(key, done=key not in undone)
        self._scale_plans.planned(result.unchanged)
        done = [d for d in result.decisions if d.job not in undone]
        self._report.planned(result, done, now)
        if undone:
            # What changed them, or the next second, brings another plan.
            _log.info("not carried out: %s", ", ".join(sorted(undone)))
            return
        jobs = self._cluster.jobs
        newcomers = {key: job for key in result.admitted if (job := jobs.get(key)) is not None}
        self._handover.admit({key: job["metadata"]["uid"] for key, job in newcomers.items()})

    def _named(self, acting: Mapping[str, Decision]) -> dict[str, Resize]:
        """Return what ScalePlans that name pods make of the decisions, and do beside them."""
        found = {}
        for key, plan in self._builder.plans_with_pods().items():
            job, obj = self._builder.job(key), self._cluster.jobs.get(key)
            if job is None or obj is None:
                continue
            views = (self._builder.pod(key_of(pod)) for pod in self._cluster.pods_of(obj))
            pods = [view for view in views if view is not None]
            policy = self._builder.policy_of(job.queue)
            resize = scale_plan_pods.resize(plan, job, pods, acting.get(key), policy)
            if resize is not None:
                found[key] = resize
        return found

    def _note(self, old: Object | None, new: Object | None) -> None:
        if self._builder.change(old, new):
            self._changed.set()

    def _note_plugin(self, proportion: bool) -> None:
        if proportion != self._builder.proportion:
            _log.info("Volcano divides by %s", "proportion" if proportion else "capacity")
            self._builder.proportion = proportion
            self._changed.set()


def _resize(decision: Decision) -> Resize:
    return Resize(
        old=decision.old,
        new=decision.new,
        reason=str(decision.reason),
        message=decision.message,
        remove=frozenset(key.rpartition("/")[2] for key in decision.remove),
        move=frozenset(key.rpartition("/")[2] for key in decision.move),
    )
