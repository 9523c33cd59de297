"""One node with the pods on it and their jobs, as a frozen value: its room, and who may leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from volcano_elastic.cluster_state.fact import fact
from volcano_elastic.cluster_state.fit import UNLIMITED, Dimensions, Shape, Vector, admits
from volcano_elastic.cluster_state.job_state import COUNTED, JobState
from volcano_elastic.snapshot.snapshot import Node, Pod, Resources

LOST_AFTER = timedelta(seconds=5)
"""A pod that is still there this long after its grace ended is not coming free soon."""
NOBODY = ""
"""The queue of a claim that has no surplus of its own anywhere."""

_index, _running, _protected = (attrgetter(name) for name in ("index", "running", "protected"))


class Most(NamedTuple):
    """The most surplus of any job, and the highest index of its pods, both negative."""

    surplus: float
    last: int


@dataclass(frozen=True, eq=False)
class NodeSurplus:
    """Pods of one node that might leave, before the plan."""

    jobs: tuple[JobState, ...]
    largest: Vector
    """The most that any one pod holds, by dimension."""
    total: Vector
    idle: int
    """Pods that don't run."""
    unprotected: int
    units: bool
    """Whether some leave in units."""
    queues: frozenset[tuple[str, Vector]]
    most: Mapping[str, Most]
    """Of any one job, by queue and, under `NOBODY`, of all."""
    together: tuple[tuple[int, float], ...]
    """How many pods the jobs with most surplus may give together at most, one job more each time,
    and the surplus of the last of them, negative."""

    def surplus_of(self, pods: int) -> float | None:
        """Return a bound, negative, on the smallest surplus among jobs that give `pods` together;
        None if they can't."""
        for together, surplus in self.together:
            if together >= pods:
                return surplus
        return None


@dataclass(frozen=True, eq=False)
class NodeState:
    """One node, the pods on it, terminating ones included, and the jobs that these belong to."""

    node: Node
    allocatable: Vector
    pods: tuple[Pod, ...]
    jobs: tuple[JobState, ...]
    dimensions: Dimensions = field(repr=False)

    @fact
    def idle(self) -> Vector:
        """Allocatable less every pod on it."""
        held: dict[Vector, int] = {}
        last: Resources | None = None
        vector: Vector = ()
        for pod in self.pods:
            if pod.requests != last:
                # Mostly those of the pod before.
                last = pod.requests
                vector = self.dimensions.request(last)
                held.setdefault(vector, 0)
            held[vector] += 1
        free = self.allocatable
        for vector, times in held.items():
            free = tuple([a - b * times for a, b in zip(free, vector, strict=True)])
        return free

    @fact
    def usable(self) -> Vector:
        """Idle room, if it takes pods at all."""
        if not self.node.ready or self.node.unschedulable:
            return (0,) * len(self.idle)
        return tuple([max(0, amount) for amount in self.idle])

    @fact
    def terminating(self) -> tuple[Pod, ...]:
        return tuple([pod for pod in self.pods if pod.terminating])

    def leaving(self, now: datetime) -> list[Vector]:
        """Amounts of the terminating pods whose room counts as coming."""
        return [
            self.dimensions.request(pod.requests)
            for pod in self.terminating
            if pod.leaves_by is None or now <= pod.leaves_by + LOST_AFTER
        ]

    @fact
    def _workers(self) -> Mapping[str, list[Pod]]:
        """Live workers but workers 0, by job."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods:
            if pod.index and pod.job is not None and not pod.terminating and pod.role == COUNTED:
                mine = found.get(pod.job)
                if mine is None:
                    found[pod.job] = [pod]
                else:
                    mine.append(pod)
        return found

    @fact
    def _ordered(self) -> dict[str, Sequence[Pod]]:
        return {}

    def workers(self, job: str) -> Sequence[Pod]:
        """Live workers of a job here but worker 0, in the order in which they leave."""
        found = self._ordered.get(job)
        if found is None:
            found = self._ordered[job] = sorted(
                self._workers[job],
                key=lambda pod: (pod.protected, pod.running, -pod.index, pod.key),
            )
        return found

    @fact
    def surplus(self) -> NodeSurplus | None:
        """Its pods that might leave for claims; None if there are none."""
        mine = tuple([s for s in self.jobs if s.may_give and s.job.key in self._workers])
        if not mine:
            return None
        idle = unprotected = last = 0
        counts: dict[Vector, int] = {}
        most: dict[str, float] = {}
        giving: list[tuple[float, int]] = []
        for state in mine:
            pods, queue = self._workers[state.job.key], state.job.queue
            count = len(pods)
            idle += count - sum(map(_running, pods))
            unprotected += count - sum(map(_protected, pods))
            last = max(last, *map(_index, pods))
            counts[state.shape.vector] = counts.get(state.shape.vector, 0) + count
            most[queue] = min(most.get(queue, 0.0), -state.most_surplus)
            giving.append((-state.most_surplus, min(count, state.job.desired - state.job.min)))
        most[NOBODY] = min(most.values())
        giving.sort()
        sums = accumulate([pods for _, pods in giving])
        totals = ([amount * count for amount in vector] for vector, count in counts.items())
        return NodeSurplus(
            jobs=mine,
            largest=tuple(map(max, zip(*counts, strict=True))),
            total=tuple(map(sum, zip(*totals, strict=True))),
            idle=idle,
            unprotected=unprotected,
            units=any(state.unit > 1 for state in mine),
            queues=frozenset([(state.job.queue, state.shape.vector) for state in mine]),
            most={queue: Most(amount, -last) for queue, amount in most.items()},
            together=tuple(zip(sums, [surplus for surplus, _ in giving], strict=True)),
        )

    @fact
    def _idle_slots(self) -> dict[Shape, int]:
        return {}

    def idle_slots(self, shape: Shape) -> int:
        """Return how many more pods of a shape fit into idle room; -1 if the node admits none."""
        found = self._idle_slots.get(shape)
        if found is None:
            found = slots_in(self.idle, shape) if admits(self.node, shape) else -1
            self._idle_slots[shape] = found
        return found


def slots_in(free: Sequence[int], shape: Shape) -> int:
    """Return how many pods of a shape fit into an amount of room."""
    least = UNLIMITED
    for i, amount in shape.needs:
        slots = free[i] // amount
        if slots < least:
            least = slots
    return max(0, least)
