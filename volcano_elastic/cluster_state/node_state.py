"""One node with the pods on it and their jobs, as a frozen value: its room, and who may leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from volcano_elastic.cluster_state.fact import fact, keep_facts, value
from volcano_elastic.cluster_state.fit import UNLIMITED, Dimensions, Shape, Vector, admits
from volcano_elastic.cluster_state.job_pods import COUNTED
from volcano_elastic.cluster_state.job_state import JobState
from volcano_elastic.snapshot.snapshot import Node, Pod, Resources

LOST_AFTER = timedelta(seconds=5)
"""A pod that is still there this long after its grace ended is not coming free soon."""
NOBODY = ""
"""The queue of a claim that has no surplus of its own anywhere."""

_index, _running, _protected = map(attrgetter, ("index", "running", "protected"))


class LeastOption(NamedTuple):
    """A bound on what any set of a node's pods that makes room for one more pod costs."""

    pods: int
    slots: int
    """The most that it makes room for."""
    protected: int
    running: int
    own: bool
    """True if all of them may be of the queue that asks."""
    surplus: float
    """Surplus of the job that has least, negative."""
    last: int
    """Highest index, negative."""


class Giver(NamedTuple):
    """The most that may leave a node of one job; the largest surplus goes first."""

    surplus: float
    """`JobSurplus.weighted` of the whole job, not of its pods on this node alone."""
    last: int
    """Highest index, negative."""
    pods: int
    queue: str


@value
class NodeSurplus:
    """Pods of one node that might leave, before the plan: bounds, as others' are not told apart."""

    jobs: tuple[JobState, ...]
    largest: Vector
    """The most that any one pod holds, by dimension."""
    idle: int
    """Pods that don't run."""
    unprotected: int
    owners: frozenset[str]
    """Queues of the jobs."""
    givers: Sequence[Giver]
    """In order."""

    @fact
    def units(self) -> bool:
        """True if some of its jobs leave in units."""
        return any(state.unit > 1 for state in self.jobs)

    @fact
    def queues(self) -> frozenset[tuple[str, Vector]]:
        """Queues, with what pods of theirs hold."""
        return frozenset([(state.job.queue, state.shape.vector) for state in self.jobs])

    def least(self, left: Vector, shape: Shape, queue: str, protected: bool) -> LeastOption | None:
        """Return what an option costs at least while this much room is left; None if there is none.
        `protected`: whether protected pods may leave."""
        slots = slots_in(left, shape)
        pods = won = 1
        for i, amount in shape.needs:
            lack = (slots + 1) * amount - left[i]
            if lack > 0:
                largest = self.largest[i]
                if not largest:
                    return None
                if pods * largest < lack:
                    pods = -(-lack // largest)
                # Without any one of its pods an option would not do.
                if (won - 1) * amount < largest - amount:
                    won = 1 + (largest - 1) // amount
        beyond = pods - self.unprotected if pods > self.unprotected else 0
        if beyond and not protected:
            return None
        running = pods - self.idle if pods > self.idle else 0
        for own in (True, False) if queue in self.owners else (False,):
            missing = pods
            for surplus, last, count, owner in self.givers:
                if not own or owner == queue:
                    missing -= count
                    if missing <= 0:
                        # The jobs with most surplus give all.
                        if pods > 1:
                            last = min([giver.last for giver in self.givers])
                        return LeastOption(pods, won, beyond, running, own, surplus, last)
        return None


@value
class NodeState:
    """One node, the pods on it, terminating ones included, and the jobs that these belong to."""

    node: Node
    allocatable: Vector
    pods: tuple[Pod, ...]
    jobs: tuple[JobState, ...]
    dimensions: Dimensions = field(repr=False)

    def with_jobs(self, jobs: tuple[JobState, ...]) -> NodeState:
        """Return the node with the same pods, whose jobs have changed."""
        found = NodeState(self.node, self.allocatable, self.pods, jobs, self.dimensions)
        keep_facts(self, found, _OF_PODS)
        return found

    @fact
    def owners(self) -> Sequence[str]:
        """Keys of the jobs that the pods belong to."""
        return [key for key in dict.fromkeys([pod.job for pod in self.pods]) if key]

    @fact
    def idle(self) -> Vector:
        """Allocatable less every pod on it."""
        held: dict[Vector, int] = {}
        last: Resources | None = None
        vector: Vector = ()
        for pod in self.pods:
            if pod.requests is not last and pod.requests != last:
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
        if not self.node.takes_pods:
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
    def _counts(self) -> Mapping[str, tuple[int, int]]:
        """Return how many of them there are and their highest index, by job."""
        return {job: (len(m), max(map(_index, m))) for job, m in self._workers.items()}

    @fact
    def _stopped(self) -> tuple[int, int]:
        """Return how many pods don't run, and how many are not protected."""
        pods = self.pods
        return len(pods) - sum(map(_running, pods)), len(pods) - sum(map(_protected, pods))

    @fact
    def _ordered(self) -> dict[str, Sequence[Pod]]:
        return {}

    def workers(self, job: str) -> Sequence[Pod]:
        """Live workers of a job here but worker 0, in the order in which they leave."""
        found = self._ordered.get(job)
        if found is None:
            found = self._ordered[job] = sorted(
                self._workers.get(job, ()),
                key=lambda pod: (pod.protected, pod.running, -pod.index, pod.key),
            )
        return found

    @fact
    def surplus(self) -> NodeSurplus | None:
        """Its pods that might leave for claims; None if there are none."""
        jobs: list[JobState] = []
        givers: list[Giver] = []
        for state in self.jobs:
            most, mine = state.most_surplus, self._counts.get(state.job.key)
            if most is not None and mine is not None:
                jobs.append(state)
                givers.append(Giver(most.weighted, -mine[1], min(most.pods, mine[0]), most.queue))
        if not givers:
            return None
        idle, unprotected = self._stopped
        vectors = {state.shape.vector for state in jobs}
        return NodeSurplus(
            jobs=tuple(jobs),
            largest=tuple(map(max, zip(*vectors, strict=True))),
            idle=idle,
            unprotected=unprotected,
            owners=frozenset([giver.queue for giver in givers]),
            givers=sorted(givers),
        )

    @fact
    def surplus_total(self) -> Vector:
        """Amounts of all pods that might leave for claims."""
        total = (0,) * len(self.allocatable)
        for state in self.jobs:
            if state.most_surplus is not None:
                count, vector = len(self._workers.get(state.job.key, ())), state.shape.vector
                total = tuple([a + b * count for a, b in zip(total, vector, strict=True)])
        return total

    @fact
    def _least_options(self) -> dict[tuple[Shape, str, bool], LeastOption | None]:
        return {}

    def least_option(self, shape: Shape, queue: str, protected: bool) -> LeastOption | None:
        """Return what an option here costs at least while all of its idle room is left."""
        surplus = self.surplus
        if surplus is None:
            return None
        asked = (shape, queue if queue in surplus.owners else NOBODY, protected)
        try:
            return self._least_options[asked]
        except KeyError:
            found = self._least_options[asked] = surplus.least(self.idle, *asked)
            return found

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


_OF_PODS = frozenset(
    (
        "owners",
        "idle",
        "usable",
        "terminating",
        "_workers",
        "_counts",
        "_stopped",
        "_ordered",
        "_idle_slots",
    )
)
"""Facts that follow from a node and its pods, whatever becomes of their jobs."""


def slots_in(free: Sequence[int], shape: Shape) -> int:
    """Return how many pods of a shape fit into an amount of room."""
    least = UNLIMITED
    for i, amount in shape.needs:
        if free[i] < amount:
            return 0
        slots = free[i] // amount
        if slots < least:
            least = slots
    return least
