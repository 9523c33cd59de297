"""Forecasts of starts and ends: simulations from a cluster as it is, and the interval they span."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from statistics import NormalDist, median

from volcano_elastic.api.role import elastic, leading
from volcano_elastic.cluster_state.fit import Dimensions, admits
from volcano_elastic.cluster_state.job_state import gpu_equivalents
from volcano_elastic.cluster_state.speed import Curve as SpeedCurve
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.past import SPAN, Past, length
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.config import SimulationConfig, Speeds
from volcano_elastic.simulator.curve import Curve
from volcano_elastic.simulator.present import Foreseen, Present, PresentJob
from volcano_elastic.simulator.simulation import foresee
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Job, Pod, Snapshot

DRAWS = 20
SHARE = 0.8
"""The part of all outcomes that the interval should hold."""
_OUTSIDE = round(DRAWS * (1 - SHARE) / 2) - 1
"""Draws on each side of it: the second of 20 is the first within."""
HORIZON = timedelta(days=30)
_MOST_ARRIVALS = 100
"""A draw: then nobody comes any more."""
_BURST, _QUEUE = 0.45, 0.15
"""Parts of the variance of lengths that all of a burst, or of a queue, have in common."""
_PAUSE = 30.0
_LARGEST = 4096
"""Workers; no curve goes beyond."""
_NORMAL = NormalDist()

ELASTIC = elastic().name
LEADING = leading().name

Uniform = Callable[[], float]
"""Gives numbers between 0 and 1."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds from now; None: later than was looked at, or never."""

    low: float | None
    middle: float | None
    high: float | None

    def holds(self, seconds: float) -> bool:
        """Return whether it happened within it."""
        early = math.inf if self.low is None else self.low
        late = math.inf if self.high is None else self.high
        return early <= seconds <= late


@dataclass(frozen=True, slots=True)
class Forecast:
    start: Interval | None
    """None: it runs already."""
    end: Interval


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster at a moment, and what is known of its jobs."""

    snapshot: Snapshot
    now: datetime
    resource: str
    records: Mapping[str, JobRecord]
    """By key, of the jobs that are there; who has none is taken to have started when its oldest pod
    was created."""
    past: Past


def forecast(scene: Scene, asked: Collection[str], uniform: Uniform) -> Mapping[str, Forecast]:
    """Return when the jobs will start and end that are asked for, by their keys."""
    rest = _Forecaster(scene, uniform)
    draws = [rest.draw(asked) for _ in range(DRAWS)]
    return {key: _combined([draw[key] for draw in draws], key in rest.running) for key in asked}


def _combined(courses: Sequence[Foreseen], runs: bool) -> Forecast:
    return Forecast(
        start=None if runs else _interval([course.start for course in courses]),
        end=_interval([course.finish for course in courses]),
    )


def _interval(found: Sequence[float | None]) -> Interval:
    ordered = sorted(math.inf if one is None else max(0.0, one) for one in found)
    half = len(ordered) // 2
    middle = ordered[half]
    if math.isfinite(middle):
        middle = (ordered[half - 1] + ordered[half]) / 2
    low, high = ordered[_OUTSIDE], ordered[-1 - _OUTSIDE]
    return Interval(*(one if math.isfinite(one) else None for one in (low, middle, high)))


@dataclass(frozen=True, slots=True)
class _Known:
    """A job that is there, as every draw begins with it."""

    job: Job
    pods: tuple[Pod, ...]
    record: JobRecord
    curve: Curve
    runs: bool
    """True if it has its minimum."""
    age: float
    """The time behind it, in seconds at its minimum size."""
    rest: float | None
    """The time before it, if its training says so."""
    only: frozenset[str] | None


class _Forecaster:
    def __init__(self, scene: Scene, uniform: Uniform) -> None:
        self._scene, self._uniform = scene, uniform
        snapshot = scene.snapshot
        self._laws: dict[tuple[int, int, int], Curve] = {}
        pauses = [job.pause.total_seconds() for job in snapshot.jobs if job.pause is not None]
        self._config = SimulationConfig(
            nodes=1,
            per_node=1,
            resource=scene.resource,
            queues=snapshot.queues,
            policies=snapshot.policies,
            pause=median(pauses) if pauses else _PAUSE,
            speeds=Speeds.NONE,
            zero=scene.now,
        )
        named = [node.allocatable for node in snapshot.nodes]
        self._dimensions = Dimensions([*named, *(job.pod_requests for job in snapshot.jobs)])
        pods: dict[str, list[Pod]] = {job.key: [] for job in snapshot.jobs}
        others: list[Pod] = []
        for pod in snapshot.pods:
            mine = pod.job is not None and pod.job in pods and not pod.terminating
            (pods[str(pod.job)] if mine else others).append(pod)
        self._base = replace(snapshot, pods=tuple(others), jobs=(), memory=snapshot.memory)
        self._jobs = [self._known(job, pods[job.key]) for job in snapshot.jobs]
        self.running = frozenset(known.job.key for known in self._jobs if known.runs)
        """Keys of the jobs that have their minimum."""

    def _known(self, job: Job, pods: list[Pod]) -> _Known:
        now = self._scene.now
        folded, workers = _without_master(job, pods, self._scene.resource)
        each = folded.pod_requests.get(self._scene.resource, 0)
        bound = [pod for pod in workers if pod.node is not None]
        runs = len(bound) >= folded.min
        record = self._scene.records.get(job.key)
        if record is None:
            record = JobRecord(
                uid="",
                job=job.key,
                queue=job.queue,
                user=job.key.partition("/")[0],
                each=each,
                min=folded.min,
                max=folded.max,
                created=job.created,
                hours=job.gpu_hours,
            )
        if runs and record.started is None:
            began = [pod.created for pod in bound if pod.created is not None]
            record = replace(record, started=min(began, default=now))
        most = min(max(folded.max, len(bound), 1), _LARGEST)
        speeds = SpeedCurve(
            folded.speeds, gpu_equivalents(folded.pod_requests, self._scene.resource)
        )
        one = speeds.log_speed(folded.min)
        curve = (0.0, *(math.exp(speeds.log_speed(size) - one) for size in range(1, most + 1)))
        rest = None
        if runs and record.remaining is not None:
            since = (now - record.said).total_seconds() if record.said else 0.0
            rest = max(1.0, record.remaining - since) * curve[len(bound)]
        return _Known(
            job=folded,
            pods=tuple(workers),
            record=record,
            curve=curve,
            runs=runs,
            age=length(record, now) if runs or record.hours else 0.0,
            rest=rest,
            only=self._nodes_of(folded),
        )

    def _nodes_of(self, job: Job) -> frozenset[str] | None:
        shape = self._dimensions.shape(
            job.pod_requests, job.node_selector, job.tolerations, job.node_affinity
        )
        nodes = [node for node in self._base.nodes if node.takes_pods]
        fitting = frozenset(
            node.name for node in nodes if node.name not in job.excluded and admits(node, shape)
        )
        return None if len(fitting) == len(nodes) else fitting

    def draw(self, asked: Collection[str]) -> Mapping[str, Foreseen]:
        """Return one course of things."""
        common: dict[Hashable, float] = {}

        def shared(key: Hashable) -> float:
            if key not in common:
                common[key] = self._normal()
            return common[key]

        def rank(record: JobRecord) -> float:
            burst = (record.created - datetime.min.replace(tzinfo=record.created.tzinfo)) // SPAN
            who = (record.user, record.queue)
            score = (
                math.sqrt(_BURST) * shared((*who, record.min, burst))
                + math.sqrt(_QUEUE) * shared(who)
                + math.sqrt(1 - _BURST - _QUEUE) * self._normal()
            )
            return min(max(_NORMAL.cdf(score), 1e-6), 1 - 1e-6)

        jobs = tuple(self._present(known, rank(known.record)) for known in self._jobs)
        return foresee(
            Present(self._base, jobs),
            self._arrivals(rank),
            self._config,
            Planner(reports=False).plan,
            asked,
            HORIZON.total_seconds(),
        )

    def _present(self, known: _Known, rank: float) -> PresentJob:
        record, job = known.record, known.job
        left = known.rest
        if left is None:
            left = self._scene.past.draw(record, known.age, rank) - known.age
        trace = TraceJob(
            name=job.key,
            queue=job.queue,
            submit=(job.created - self._scene.now).total_seconds(),
            gpus=job.min,
            work=max(1.0, left),
            curve=known.curve,
            min=job.min,
            max=job.max,
            unit=job.node_unit,
            each=job.pod_requests.get(self._scene.resource, 0),
        )
        return PresentJob(trace, job, known.pods, known.only)

    def _arrivals(self, rank: Callable[[JobRecord], float]) -> list[TraceJob]:
        """Return those that came on some day, from the time of day it is now on."""
        past, now = self._scene.past, self._scene.now
        if not past.days:
            return []
        ago = 1 + min(int(self._uniform() * min(past.days, 14)), past.days - 1)
        room = sum(node.allocatable.get(self._scene.resource, 0) for node in self._base.nodes)
        found = []
        for i, (after, record) in enumerate(islice(past.arrivals(ago, HORIZON), _MOST_ARRIVALS)):
            if record.min * record.each > room or record.max > _LARGEST:
                continue
            lasted = length(record, now)
            if record.ended is None:
                lasted = past.draw(record, lasted if record.started else 0.0, rank(record))
            # Its speed at its minimum is that of so many GPUs.
            curve = self._law_of(record)
            found.append(
                TraceJob(
                    name=f"arrival-{i}",
                    queue=record.queue,
                    submit=after.total_seconds(),
                    gpus=record.min,
                    work=max(1.0, lasted),
                    curve=curve,
                    min=record.min,
                    max=record.max,
                    each=record.each,
                )
            )
        return found

    def _law_of(self, record: JobRecord) -> Curve:
        key = (record.min, record.max, record.each)
        found = self._laws.get(key)
        if found is None:
            speeds = SpeedCurve({}, max(record.each, 1) / 1000)
            one = speeds.log_speed(record.min)
            sizes = range(1, record.max + 1)
            found = (0.0, *(math.exp(speeds.log_speed(size) - one) for size in sizes))
            self._laws[key] = found
        return found

    def _normal(self) -> float:
        return _NORMAL.inv_cdf(min(max(self._uniform(), 1e-9), 1 - 1e-9))


def _without_master(job: Job, pods: list[Pod], resource: str) -> tuple[Job, list[Pod]]:
    """Return the job with its Master counted as a worker, or left out where it holds nothing."""
    workers = [pod for pod in pods if pod.role == ELASTIC]
    if job.master_requests is None:
        return job, workers
    holds = job.master_requests.get(resource, 0) > 0 and job.node_unit == 1
    if not holds:
        return replace(job, master_requests=None), workers
    free = max((pod.index for pod in workers), default=-1) + 1
    masters = [
        replace(pod, role=ELASTIC, index=free + i)
        for i, pod in enumerate(pod for pod in pods if pod.role == LEADING)
    ]
    speeds = {size + 1: speed for size, speed in job.speeds.items()}
    folded = replace(
        job,
        master_requests=None,
        min=job.min + 1,
        max=job.max + 1,
        desired=job.desired + 1,
        speeds=speeds,
    )
    return folded, workers + masters
