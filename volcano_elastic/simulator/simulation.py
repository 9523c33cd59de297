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
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from operator import attrgetter

from volcano_elastic.api.queue_policy import QueuePolicy, effective
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.simulator.config import Discipline, SimulationConfig, Speeds
from volcano_elastic.simulator.outcome import Outcome, Run, Stuck
from volcano_elastic.simulator.simulated_job import SimulatedJob, moment
from volcano_elastic.simulator.simulated_nodes import SimulatedNodes
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Job, Memory, Pod, Snapshot

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


class _Simulation:
    def __init__(
        self,
        jobs: list[TraceJob],
        config: SimulationConfig,
        make_plan: MakePlan | None,
        progress: Callable[[int], None],
    ) -> None:
        self._config, self._make_plan, self._progress = config, make_plan, progress
        self._trace = sorted(jobs, key=lambda job: job.submit)
        self._submitted = 0
        self._nodes = SimulatedNodes(config)
        self._requests = {config.resource: 1000}
        self._simulated: dict[str, SimulatedJob] = {}
        self._waiting: dict[str, SimulatedJob] = {}
        """Those with pods that have no node."""
        self._untried: dict[str, SimulatedJob] = {}
        """Those of them that the scheduler has not looked at yet."""
        self._released = False
        """Room has come free since it looked at the others."""
        self._leaving: dict[str, Pod] = {}
        self._touched: dict[str, SimulatedJob] = {}
        self._resized: dict[str, SimulatedJob] = {}
        """Those whose pods need not be as many as they should."""
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._counter = 0
        self._wakes: set[float] = set()
        self._policies = effective(config.policies)
        unit = config.resource
        self._capability = {
            queue.name: queue.capability[unit] // 1000
            for queue in config.queues
            if queue.capability is not None and unit in queue.capability
        }
        self._used: Counter[str] = Counter()
        self._runs: dict[str, Run] = {}
        self._plans = 0
        self._reasons: Counter[str] = Counter()
        self._grace_spent = 0.0
        self._known: dict[tuple[int, int], dict[int, float]] = {}
        self._hours_change = 0.0
        """Until then `count_hours` would find nothing new for anybody."""
        self._changed = False
        self._fruitless = 0
        self._memory = Memory()

    def run(self) -> Outcome:
        while len(self._runs) < len(self._trace):
            now = self._next()
            finished = len(self._runs)
            while self._submitted < len(self._trace) and (
                self._trace[self._submitted].submit <= now
            ):
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
            if len(self._runs) > finished:
                self._progress(len(self._runs))
        return Outcome(
            config=self._config,
            runs=tuple(self._runs[job.name] for job in self._trace),
            plans=self._plans,
            reasons=dict(sorted(self._reasons.items())),
            leaving=self._grace_spent,
        )

    # Events

    def _next(self) -> float:
        """The end of the second in which the next thing happens."""
        times = [self._events[0][0]] if self._events else []
        if self._submitted < len(self._trace):
            times.append(self._trace[self._submitted].submit)
        if not times or (self._fruitless > PATIENCE and self._submitted == len(self._trace)):
            waiting = sorted(self._simulated)
            raise Stuck(
                f"{len(waiting)} jobs can never finish, the first of them {waiting[0]}: nothing "
                "else is left to happen; is its queue or the cluster too small for its minimum?"
            )
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
            created=moment(trace.submit),
            min=least,
            max=trace.gpus if rigid else trace.max,
            desired=least,
            pod_requests=self._requests,
            node_unit=trace.unit,
            cooldown=self._cooldown(trace.queue),
            speeds=self._speeds(trace),
            pause=timedelta(seconds=self._config.pause),
        )
        simulated = self._simulated[trace.name] = SimulatedJob(trace, job, self._config.pause)
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
        self._used[simulated.trace.queue] -= simulated.bound
        self._gone(list(simulated.pods.values()))
        self._runs[simulated.job.key] = simulated.finished(at)

    def _gone(self, pods: list[Pod]) -> None:
        for pod in pods:
            self._leaving.pop(pod.uid, None)
            if pod.node is not None:
                self._nodes.give(pod.node)
        self._changed = self._released = True

    # What the scheduler does

    def _create_pods(self, simulated: SimulatedJob, now: float) -> None:
        simulated.create_pods(self._requests, now)
        if simulated.unbound:
            self._waiting[simulated.job.key] = simulated
            self._untried[simulated.job.key] = simulated

    def _bind(self) -> None:
        """Gangs below their minimum first, oldest first, whole or not at all; then single pods."""
        if not self._nodes.free:
            return
        # Whoever found no room finds none before some comes free.
        fifo = self._config.discipline is Discipline.FIFO
        candidates = self._waiting if self._released or fifo else self._untried
        waiting = sorted(candidates.values(), key=attrgetter("place"))
        self._released, self._untried = False, {}
        for simulated in waiting:
            short = simulated.job.min - simulated.bound
            if short <= 0:
                continue
            if short <= self._nodes.free and short <= self._room(simulated.trace.queue):
                self._bind_pods(simulated, short)
            elif fifo:
                return
        for simulated in waiting:
            if simulated.bound >= simulated.job.min:
                room = min(self._nodes.free, self._room(simulated.trace.queue))
                self._bind_pods(simulated, min(simulated.unbound, room))

    def _room(self, queue: str) -> int:
        capability = self._capability.get(queue)
        return self._nodes.free if capability is None else capability - self._used[queue]

    def _bind_pods(self, simulated: SimulatedJob, count: int) -> None:
        if count <= 0:
            return
        for index in sorted(i for i, pod in simulated.pods.items() if pod.node is None)[:count]:
            node = self._nodes.take()
            assert node is not None
            simulated.bind(index, node)
        self._used[simulated.trace.queue] += count
        self._touched[simulated.job.key] = simulated
        if not simulated.unbound:
            del self._waiting[simulated.job.key]

    def _settle(self, now: float) -> None:
        """Jobs whose size has changed go on at the new one."""
        for simulated in self._touched.values():
            if simulated.bound == simulated.size:
                continue
            finish = simulated.settle(now)
            self._hours_change = now
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
        made = make_plan(self._snapshot(now), moment(now))
        self._memory = made.memory
        removed: list[Pod] = []
        for decision in made.decisions:
            self._reasons[str(decision.reason)] += 1
            simulated = self._simulated[decision.job]
            bound = [pod for pod in simulated.resized(decision, now) if pod.node is not None]
            # As Volcano counts: a terminating pod holds its node, but no longer its queue's room.
            self._used[simulated.trace.queue] -= len(bound)
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
        idle = self._nodes.free == self._config.total
        self._fruitless = self._fruitless + 1 if idle and not made.decisions else 0
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
            leaves_by = moment(now + grace)
            self._leaving[pod.uid] = replace(pod, terminating=True, leaves_by=leaves_by)
        self._at(now + grace, lambda at: self._gone(pods))

    def _snapshot(self, now: float) -> Snapshot:
        everybody = self._simulated.values()
        if self._hours_change <= now:
            for simulated in everybody:
                if simulated.hours_change <= now:
                    simulated.count_hours(now)
            self._hours_change = min([s.hours_change for s in everybody], default=math.inf)
        pods = [simulated.pods.values() for simulated in everybody]
        return Snapshot(
            nodes=self._nodes.nodes,
            pods=tuple(chain.from_iterable([*pods, self._leaving.values()])),
            jobs=tuple([simulated.job for simulated in everybody]),
            queues=self._config.queues,
            policies=self._config.policies,
            memory=self._memory,
        )

    def _cooldown(self, queue: str) -> timedelta:
        given = self._policy(queue).grow.cooldown
        return COOLDOWN if given is None else given

    def _policy(self, queue: str) -> QueuePolicy:
        found = self._policies.get(queue)
        if found is None:
            found = self._policies[queue] = QueuePolicy(queue=queue)
        return found
