"""A job while it is simulated: its pods, its progress, and how the planner sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from volcano_elastic.api.role import elastic
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.simulator.outcome import Run, Segment
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Job, Pod

LABEL = elastic().label


class SimulatedJob:
    """Counts the progress of one job; the simulation tells it each change of size."""

    def __init__(
        self,
        trace: TraceJob,
        job: Job,
        pause: float,
        everybody: dict[str, Pod],
        only: frozenset[str] | None = None,
        *,
        young_hours: float = math.inf,
    ) -> None:
        """Make it without pods.

        Args:
            everybody: all pods of the cluster by uid, to which its own are added.
            young_hours: worker-hours after which the planner takes it for old, however many more.
        """
        self.trace = trace
        self.only = only
        """Names of the nodes that it may go to; None: any."""
        self.job = job
        self.kind = trace.each, trace.queue, only
        """Jobs of one kind find the same room."""
        self.place = trace.submit, job.key
        """In the scheduler's order: oldest first."""
        self.pods: dict[int, Pod] = {}
        self.bound = 0
        self.size = 0
        """Workers that it has run with since `since`."""
        self.since = trace.submit
        self.resume = trace.submit
        """From here on it makes progress."""
        self.start: float | None = None
        self.left = trace.work
        self.held = 0.0
        """Worker-seconds up to `since`."""
        self.resizes = 0
        self.segments: list[Segment] = []
        self.version = 0
        """Counts changes of the expected finish; an older expectation is void."""
        self.hours_change = math.inf
        """Until then `count_hours` would find nothing new."""
        self._pause, self._everybody = pause, everybody
        self._young, self._young_hours = True, young_hours

    @property
    def unbound(self) -> int:
        return len(self.pods) - self.bound

    def begin_with(self, pods: Iterable[Pod]) -> None:
        """Take over the pods, and the worker-hours, that it has when the simulation begins."""
        self.held = 3600 * self.job.gpu_hours
        for pod in pods:
            self._keep(pod)
        self.bound = sum(pod.node is not None for pod in self.pods.values())
        self.since = self.resume = 0.0

    def create_pods(self, now: float, created: datetime) -> None:
        """Create the pods that the desired size lacks, at the lowest free indexes.

        Args:
            created: `now` on the planner's clock.
        """
        index, job = 0, self.job
        while len(self.pods) < job.desired:
            if index not in self.pods:
                key = f"{job.key}-{LABEL}-{index}"
                pod = Pod(
                    key=key,
                    uid=f"{key} {now}",
                    requests=job.pod_requests,
                    job=job.key,
                    gang=job.key,
                    index=index,
                    protected=index < job.min,
                    created=created,
                    node_selector=job.node_selector,
                    tolerations=job.tolerations,
                    node_affinity=job.node_affinity,
                    priority=job.priority,
                )
                self._keep(pod)
            index += 1

    def _keep(self, pod: Pod) -> None:
        """Add one of its pods, or change what it is."""
        self.pods[pod.index] = self._everybody[pod.uid] = pod

    def bind(self, index: int, node: str) -> None:
        self._keep(replace(self.pods[index], node=node, running=True))
        self.bound += 1

    def resized(self, decision: Decision, now: datetime) -> list[Pod]:
        """Carry out a decision; return the pods that leave."""
        self.job = replace(
            self.job,
            desired=decision.new,
            last_scale=now,
            last_reason=str(decision.reason),
        )
        leaving = set(decision.remove)
        gone = [pod for pod in self.pods.values() if pod.key in leaving]
        for pod in gone:
            del self.pods[pod.index], self._everybody[pod.uid]
            self.bound -= pod.node is not None
        if any(pod.protected for pod in gone):
            lowest = sorted(self.pods.values(), key=lambda pod: (pod.node is None, pod.index))
            for pod in lowest[: self.job.min]:
                self._keep(replace(pod, protected=True))
        return gone

    def settle(self, now: float) -> float | None:
        """Go on with the pods bound now; return when it will finish at that size, if ever.

        The first start costs nothing; every later change of size stops the whole job.
        """
        self._account(now)
        size = self.bound if self.bound >= self.job.min else 0
        if self.start is None:
            if size:
                self.start = self.resume = now
        else:
            self.resizes += 1
            self.resume = now + self._pause
        self.size, self.since = size, now
        self.hours_change = now if self._young else math.inf
        self.version += 1
        rate = self.trace.curve[size]
        return max(now, self.resume) + self.left / rate if rate else None

    def finished(self, now: float) -> Run:
        self._account(now)
        start = now if self.start is None else self.start
        return Run(self.trace, start, now, self.resizes, tuple(self.segments))

    def count_hours(self, now: float) -> None:
        """Tell the planner the worker-hours it has held while it is young, rounded down to an hour
        or a sixteenth, so that the planner's view of a job seldom changes."""
        hours = (self.held + self.size * (now - self.since)) / 3600
        step = 2.0 ** max(0, math.frexp(hours)[1] - 5)
        rounded = hours // step * step
        if rounded != self.job.gpu_hours:
            self.job = replace(self.job, gpu_hours=rounded)
        self._young = rounded < self._young_hours
        # A second early, since sums of floating numbers are not exact.
        left = (rounded + step - hours) * 3600
        grows = self._young and self.size
        self.hours_change = now + left / self.size - 1 if grows else math.inf

    def measured(self) -> None:
        """Let the planner know the speed at the present size."""
        speeds = {**self.job.speeds, self.size: self.trace.curve[self.size]}
        self.job = replace(self.job, speeds=speeds)

    def _account(self, now: float) -> None:
        if self.start is None or now <= self.since:
            return
        self.left -= self.trace.curve[self.size] * max(0.0, now - max(self.resume, self.since))
        self.held += self.size * (now - self.since)
        if self.size:
            self.segments.append(Segment(self.since, now, self.size, self.resume))
