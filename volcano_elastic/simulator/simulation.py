"""The virtual clock: what happens to a trace under `plan`, or under rigid scheduling.

Between events nothing changes. Events are submissions, finishes, the end of a removed pod's grace,
and times at which the planner may see things differently though nothing happened (a cooldown ends).
All events of a second are handled at its end, in the order of the real cluster: pods go, the
scheduler binds what waits, the planner sees the result, and its decisions are carried out.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter

from volcano_elastic.api.queue_policy import QueuePolicy, effective
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.simulator.config import Discipline, SimulationConfig, Speeds
from volcano_elastic.simulator.outcome import Outcome, Run, Stuck
from volcano_elastic.simulator.present import Foreseen, Present, PresentJob
from volcano_elastic.simulator.simulated_job import SimulatedJob
from volcano_elastic.simulator.simulated_nodes import SimulatedNodes, equal_nodes
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Job, Pod, Snapshot

MakePlan = Callable[[Snapshot, datetime], Plan]

TICK = 1.0
"""Seconds in which changes come together; the operator plans at least as often."""
COOLDOWN = timedelta(seconds=60)
"""Cooldown of queues whose policies name none."""
PATIENCE = 100
"""Plans in a row that change nothing while nothing runs, after which nothing ever will."""
MEASURED_AFTER = 30.0
"""Seconds of progress at a size after which its speed is known."""


def simulate(
    jobs: Iterable[TraceJob],
    config: SimulationConfig,
    make_plan: MakePlan | None,
    progress: Callable[[int], None] = lambda finished: None,
) -> Outcome:
    """Run `jobs` to the end; without a planner each is a gang of the size it asked for.

    Args:
        make_plan: `queue_policy.plan.plan`, or what is quicker, a fresh `Planner().plan`, which
            need make no reports.
        progress: is told the number of finished jobs whenever it grows.

    Raises:
        Stuck: some jobs can never finish, e.g. in a queue that is too small for them.
    """
    return _Simulation(list(jobs), config, make_plan, progress).run()


def foresee(
    present: Present,
    arrivals: Iterable[TraceJob],
    config: SimulationConfig,
    make_plan: MakePlan,
    asked: Collection[str],
    horizon: float,
) -> Mapping[str, Foreseen]:
    """Return the courses of the jobs asked for, from a cluster as it is now.

    Args:
        arrivals: jobs that come later.
        config: its `zero` is now; its nodes are not looked at.
        horizon: seconds that are looked at.
    """
    simulation = _Simulation(list(arrivals), config, make_plan, lambda finished: None, present)
    return simulation.look_ahead(asked, horizon)


class _Simulation:
    def __init__(
        self,
        jobs: list[TraceJob],
        config: SimulationConfig,
        make_plan: MakePlan | None,
        progress: Callable[[int], None],
        present: Present | None = None,
    ) -> None:
        self._config, self._make_plan, self._progress = config, make_plan, progress
        self._trace = sorted(jobs, key=lambda job: job.submit)
        self._submitted = 0
        self._base = Snapshot(nodes=equal_nodes(config)) if present is None else present.base
        self._base = replace(self._base, queues=config.queues, policies=config.policies)
        self._nodes = SimulatedNodes(self._base.nodes, config.resource)
        self._requests: dict[int, dict[str, int]] = {}
        self._simulated: dict[str, SimulatedJob] = {}
        self._waiting: dict[str, SimulatedJob] = {}
        """Those with pods that have no node."""
        self._untried: dict[str, SimulatedJob] = {}
        """Those of them that the scheduler has not looked at yet."""
        self._released = False
        """Room has come free since it looked at the others."""
        self._pods = {pod.uid: pod for pod in self._base.pods}
        """All that there are, by uid."""
        self._touched: dict[str, SimulatedJob] = {}
        self._resized: dict[str, SimulatedJob] = {}
        """Those whose pods need not be as many as they should."""
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._counter = 0
        self._wakes: set[float] = set()
        self._policies = effective(config.policies)
        unit = config.resource
        self._capability = {
            queue.name: queue.capability[unit]
            for queue in config.queues
            if queue.capability is not None and unit in queue.capability
        }
        self._used: Counter[str] = Counter()
        self._runs: dict[str, Run] = {}
        self._plans = 0
        self._reasons: Counter[str] = Counter()
        self._grace_spent = 0.0
        self._known: dict[tuple[int, int], dict[int, float]] = {}
        self._hours: list[tuple[float, int, SimulatedJob]] = []
        """A heap: until when `count_hours` would find nothing new for whom."""
        self._changed = False
        self._idle_plans = 0
        self._memory = self._base.memory
        for pod in self._base.pods:
            if pod.node is not None:
                self._nodes.hold(pod.node, pod.requests.get(unit, 0))
                self._leave_later(pod)
        self._empty = self._nodes.free
        """The free room while no job holds anything."""
        for one in () if present is None else present.jobs:
            self._begin_with(one)
        if present is not None:
            self._settle(0.0)

    def _begin_with(self, present: PresentJob) -> None:
        """Let a job be there from the beginning."""
        trace = present.trace
        job, pause = present.job, self._config.pause
        simulated = SimulatedJob(trace, job, pause, self._pods, present.only)
        simulated.begin_with(present.pods)
        for pod in present.pods:
            if pod.node is not None:
                self._nodes.hold(pod.node, trace.each)
        self._used[trace.queue] += simulated.bound * trace.each
        self._simulated[trace.name] = self._resized[trace.name] = simulated
        self._touched[trace.name] = simulated
        if simulated.unbound:
            self._waiting[trace.name] = self._untried[trace.name] = simulated
        self._changed = True

    def _leave_later(self, pod: Pod) -> None:
        """Free the room of a pod that is leaving when the simulation begins."""
        if pod.terminating and pod.leaves_by is not None:
            at = max(0.0, (pod.leaves_by - self._config.zero).total_seconds())
            self._at(at, lambda at: self._gone([pod]))

    def look_ahead(self, asked: Collection[str], horizon: float) -> Mapping[str, Foreseen]:
        """Go on until all that are asked for have finished, or to the horizon."""
        now = 0.0
        self._step(now)
        while not all(name in self._runs for name in asked):
            found = self._next_time()
            if found is None or found > horizon:
                break
            now = found
            self._step(now)
        return {name: self._foreseen(name) for name in asked}

    def _foreseen(self, name: str) -> Foreseen:
        run = self._runs.get(name)
        if run is not None:
            return Foreseen(run.start, run.finish)
        simulated = self._simulated.get(name)
        return Foreseen(None if simulated is None else simulated.start, None)

    def run(self) -> Outcome:
        while len(self._runs) < len(self._trace):
            now = self._next()
            finished = len(self._runs)
            self._step(now)
            if len(self._runs) > finished:
                self._progress(len(self._runs))
        return Outcome(
            config=self._config,
            runs=tuple(self._runs[job.name] for job in self._trace),
            plans=self._plans,
            reasons=dict(sorted(self._reasons.items())),
            leaving=self._grace_spent,
        )

    def _step(self, now: float) -> None:
        """Let happen what happens up to `now`, and what follows from it."""
        while self._submitted < len(self._trace) and (self._trace[self._submitted].submit <= now):
            self._submit(self._trace[self._submitted])
            self._submitted += 1
        while self._events and self._events[0][0] <= now:
            at, _, happen = heapq.heappop(self._events)
            happen(at)
        self._bind()
        if self._make_plan is not None and self._changed:
            if self._config.round and now % self._config.round:
                self._changed = False
                self._wake(math.ceil(now / self._config.round) * self._config.round)
            else:
                self._plan(self._make_plan, now)
        self._settle(now)

    # Events

    def _next(self) -> float:
        """The end of the second in which the next thing happens."""
        found = self._next_time()
        if found is None:
            waiting = sorted(self._simulated)
            raise Stuck(
                f"{len(waiting)} jobs can never finish, the first of them {waiting[0]}: nothing "
                "else is left to happen; is its queue or the cluster too small for its minimum?"
            )
        return found

    def _next_time(self) -> float | None:
        """The same; None where nothing will ever happen."""
        times = [self._events[0][0]] if self._events else []
        if self._submitted < len(self._trace):
            times.append(self._trace[self._submitted].submit)
        if not times or (self._idle_plans > PATIENCE and self._submitted == len(self._trace)):
            return None
        return math.ceil(min(times) / TICK) * TICK

    def _at(self, time: float, happen: Callable[[float], None]) -> None:
        self._counter += 1
        heapq.heappush(self._events, (time, self._counter, happen))

    def _wake(self, time: float) -> None:
        """Plan again then, whether or not anything happens."""
        time = math.ceil(time / TICK) * TICK
        if time not in self._wakes:
            self._wakes.add(time)
            self._at(time, self._awake)

    def _awake(self, at: float) -> None:
        self._wakes.discard(at)
        self._changed = True

    def _submit(self, trace: TraceJob) -> None:
        rigid = self._make_plan is None
        least = trace.gpus if rigid else trace.min
        job = Job(
            key=trace.name,
            queue=trace.queue,
            created=self._config.moment(trace.submit),
            min=least,
            max=trace.gpus if rigid else trace.max,
            desired=least,
            pod_requests=self._requests.setdefault(trace.each, {self._config.resource: trace.each}),
            node_unit=trace.unit,
            cooldown=self._cooldown(trace.queue),
            speeds=self._speeds(trace),
            pause=timedelta(seconds=self._config.pause),
        )
        young = self._policy(trace.queue).surplus.young_gpu_hours
        simulated = SimulatedJob(trace, job, self._config.pause, self._pods, young_hours=young)
        self._simulated[trace.name] = simulated
        if rigid:
            self._create_pods(simulated, trace.submit)
        else:
            self._resized[trace.name] = simulated
        self._changed = True

    def _speeds(self, trace: TraceJob) -> dict[int, float]:
        if self._config.speeds is not Speeds.KNOWN:
            return {}
        # One mapping for all that share a curve: the planner may remember what it made of it.
        key = (id(trace.curve), trace.max)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = {k: trace.curve[k] for k in range(1, trace.max + 1)}
        return known

    def _finish(self, simulated: SimulatedJob, version: int, at: float) -> None:
        if simulated.version != version:
            return
        del self._simulated[simulated.job.key]
        self._waiting.pop(simulated.job.key, None)
        self._untried.pop(simulated.job.key, None)
        self._touched.pop(simulated.job.key, None)
        self._used[simulated.trace.queue] -= simulated.bound * simulated.trace.each
        self._gone(list(simulated.pods.values()))
        self._runs[simulated.job.key] = simulated.finished(at)

    def _gone(self, pods: list[Pod]) -> None:
        for pod in pods:
            self._pods.pop(pod.uid, None)
            if pod.node is not None:
                self._nodes.give(pod.node, pod.requests.get(self._config.resource, 0))
        self._changed = self._released = True

    # What the scheduler does

    def _create_pods(self, simulated: SimulatedJob, now: float) -> None:
        simulated.create_pods(now, self._config.moment(now))
        if simulated.unbound:
            self._waiting[simulated.job.key] = simulated
            self._untried[simulated.job.key] = simulated

    def _bind(self) -> None:
        """Gangs below their minimum first, oldest first, whole or not at all; then single pods."""
        if self._nodes.free <= 0:
            return
        # Whoever found no room finds none before some comes free.
        fifo = self._config.discipline is Discipline.FIFO
        candidates = self._waiting if self._released or fifo else self._untried
        waiting = sorted(candidates.values(), key=attrgetter("place"))
        self._released, self._untried = False, {}
        rooms: dict[tuple[object, ...], int] = {}
        for simulated in waiting:
            short = simulated.job.min - simulated.bound
            if short <= 0:
                continue
            room = rooms.get(simulated.kind)
            if room is None:
                room = rooms[simulated.kind] = self._room(simulated)
            if short <= room:
                self._bind_pods(simulated, short)
                rooms.clear()
            elif fifo:
                return
        for simulated in waiting:
            if simulated.bound >= simulated.job.min:
                self._bind_pods(simulated, min(simulated.unbound, self._room(simulated)))

    def _room(self, simulated: SimulatedJob) -> int:
        """Return how many more of its workers fit on nodes and into its queue."""
        each = simulated.trace.each
        room = self._nodes.room(each, simulated.only)
        if not self._capability:
            return room
        queue = simulated.trace.queue
        capability = self._capability.get(queue)
        if capability is None or each <= 0:
            return room
        return min(room, (capability - self._used[queue]) // each)

    def _bind_pods(self, simulated: SimulatedJob, count: int) -> None:
        if count <= 0:
            return
        for index in sorted(i for i, pod in simulated.pods.items() if pod.node is None)[:count]:
            node = self._nodes.take(simulated.trace.each, simulated.only)
            assert node is not None
            simulated.bind(index, node)
        self._used[simulated.trace.queue] += count * simulated.trace.each
        self._touched[simulated.job.key] = simulated
        if not simulated.unbound:
            del self._waiting[simulated.job.key]

    def _settle(self, now: float) -> None:
        """Jobs whose size has changed go on at the new one."""
        for simulated in self._touched.values():
            if simulated.bound == simulated.size:
                continue
            finish = simulated.settle(now)
            self._count_at(simulated)
            version = simulated.version
            if finish is not None:
                self._at(finish, lambda at, s=simulated, v=version: self._finish(s, v, at))  # type: ignore[misc]
                if (
                    self._config.speeds is Speeds.LEARNT
                    and simulated.size not in simulated.job.speeds
                ):
                    known = simulated.resume + MEASURED_AFTER
                    if known < finish:
                        self._at(known, lambda at, s=simulated, v=version: self._learn(s, v, at))  # type: ignore[misc]
        self._touched.clear()

    def _learn(self, simulated: SimulatedJob, version: int, at: float) -> None:
        if simulated.version == version:
            simulated.measured()
            self._changed = True

    # What the operator does

    def _plan(self, make_plan: MakePlan, now: float) -> None:
        self._changed = False
        self._plans += 1
        made = make_plan(self._snapshot(now), self._config.moment(now))
        self._memory = made.memory
        removed: list[Pod] = []
        for decision in made.decisions:
            self._reasons[str(decision.reason)] += 1
            simulated = self._simulated[decision.job]
            bound = [
                pod
                for pod in simulated.resized(decision, self._config.moment(now))
                if pod.node is not None
            ]
            # As Volcano counts: a terminating pod holds its node, but no longer its queue's room.
            self._used[simulated.trace.queue] -= len(bound) * simulated.trace.each
            self._released = True
            removed += bound
            self._touched[decision.job] = self._resized[decision.job] = simulated
            if not simulated.unbound:
                self._waiting.pop(decision.job, None)
            policy = self._policy(simulated.trace.queue)
            self._wake(now + self._cooldown(simulated.trace.queue).total_seconds())
            self._wake(now + policy.rebalance.cooldown.total_seconds())
        if removed:
            self._remove(removed, now)
        created = [one for one in self._resized.values() if len(one.pods) < one.job.desired]
        self._resized.clear()
        for simulated in created:
            self._create_pods(simulated, now)
        before = self._nodes.free
        self._bind()
        idle = self._nodes.free == self._empty
        self._idle_plans = self._idle_plans + 1 if idle and not made.decisions else 0
        if made.decisions or self._nodes.free < before:
            # What has changed opens new chances, e.g. a newcomer that has its minimum may grow.
            self._wake(now + TICK)
        if any(
            simulated.unbound and simulated.job.key not in made.blocked for simulated in created
        ):
            # Somebody was promised room and has none: the planner's patience ends one day.
            self._wake(now + 16)
            self._wake(now + 31)

    def _remove(self, pods: list[Pod], now: float) -> None:
        grace = self._config.grace
        if not grace:
            self._gone(pods)
            return
        self._grace_spent += grace * len(pods)
        for pod in pods:
            leaves_by = self._config.moment(now + grace)
            self._pods[pod.uid] = replace(pod, terminating=True, leaves_by=leaves_by)
        self._at(now + grace, lambda at: self._gone(pods))

    def _snapshot(self, now: float) -> Snapshot:
        self._count_hours(now)
        return replace(
            self._base,
            pods=tuple(self._pods.values()),
            jobs=tuple([simulated.job for simulated in self._simulated.values()]),
            memory=self._memory,
        )

    def _count_hours(self, now: float) -> None:
        due: dict[str, SimulatedJob] = {}
        while self._hours and self._hours[0][0] <= now:
            _, _, simulated = heapq.heappop(self._hours)
            # It may have ended, or have been given another time since.
            if simulated.job.key in self._simulated and simulated.hours_change <= now:
                due[simulated.job.key] = simulated
        for simulated in due.values():
            simulated.count_hours(now)
            self._count_at(simulated)

    def _count_at(self, simulated: SimulatedJob) -> None:
        self._counter += 1
        heapq.heappush(self._hours, (simulated.hours_change, self._counter, simulated))

    def _cooldown(self, queue: str) -> timedelta:
        given = self._policy(queue).grow.cooldown
        return COOLDOWN if given is None else given

    def _policy(self, queue: str) -> QueuePolicy:
        found = self._policies.get(queue)
        if found is None:
            found = self._policies[queue] = QueuePolicy(queue=queue)
        return found
