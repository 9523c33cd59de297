"""A claim's request to surplus, and the options for it: sets of pods and what they cost.

Places are ordered by what their options cost at least; only for those in front one is looked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from volcano_elastic.cluster_state.fit import Shape, Vector
from volcano_elastic.queue_policy.draft import JobDraft
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.snapshot.snapshot import Pod

P = TypeVar("P", bound=Hashable)

ALL = 1 << 30
"""The most slots that an option may make."""


class VictimRequest(NamedTuple):
    """Room for more pods, from surplus."""

    shape: Shape
    queue: str
    own: str | None
    """Key of the job that gives all of it, if one must."""
    protected: bool
    """True if protected pods may leave."""
    need: int = ALL
    """Slots that are of use."""
    priority: int | None = None
    """Priority of the pod that asks; None for a minimum."""
    within: str | None = None
    """The queue in which all of it must count, if one is full."""
    among: frozenset[str] | None = None
    """Queues of which each place has surplus, if others' need not be looked at."""


class Victim(NamedTuple):
    """A pod that may leave, its job, and the number of its node."""

    pod: Pod
    job: JobDraft
    node: int

    @property
    def vector(self) -> Vector:
        """The amounts that its leaving frees, by dimension."""
        return self.job.state.shape.vector


class Cost(NamedTuple):
    """The cost of an option, by which they are compared; the smallest is taken."""

    pods_per_slot: float
    pods: int
    """Pods that leave in the end, whole units counted."""
    protected: int
    running: int
    right: int
    """0: the claim's own queue, 1: borrowed, 2: by its own right."""
    share: float
    """Negative, of what the queue deserves."""
    surplus: float
    """Negative, of the job that has least."""
    last: int
    """Negative, the highest index of that job that leaves."""


class Right(NamedTuple):
    """A queue's right to its pods, as in a cost."""

    right: int
    share: float


OWN = Right(0, 0.0)
"""The claim's own queue's."""


class Option(NamedTuple):
    """Pods that may leave together for a claim, and the cost of it."""

    cost: Cost
    pod: str
    """Key of the pod that decides among equals of one node."""
    victims: tuple[Victim, ...]
    slots: int = 1
    """How many more pods of the claim it makes room for."""


class Costs:
    """Works out what options cost, by what queues and jobs have left at the time."""

    def __init__(self, queues: QueueRoom) -> None:
        self._queues = queues
        self._rights: dict[tuple[str, Vector], Right] = {}
        """Rights worked out so far; they hold as long as no queue holds more or less."""
        self._rights_at = 0

    def right(self, queue: str, vector: Vector) -> Right:
        """Return how much right a queue has to a pod of its own."""
        if self._rights_at != self._queues.uses:
            self._rights.clear()
            self._rights_at = self._queues.uses
        found = self._rights.get((queue, vector))
        if found is None:
            found = Right(2 - self._queues.borrows(queue, vector), -self._queues.share(queue))
            self._rights[queue, vector] = found
        return found

    def option(self, victims: tuple[Victim, ...], queue: str, slots: int = 1) -> Option:
        """Return the victims as one option of a claim of `queue`."""
        jobs: dict[str, JobDraft] = {}
        pods: dict[str, list[Pod]] = {}
        for pod, job, _ in victims:
            jobs[job.job.key] = job
            pods.setdefault(job.job.key, []).append(pod)
        count = 0
        for key, job in jobs.items():
            # Without those that leave anyway; whole units.
            more, unit = max(0, len(pods[key]) - job.unit_remainder), job.state.unit
            count += -(-more // unit) * unit
        others = [
            self.right(job.job.queue, job.state.shape.vector)
            for job in jobs.values()
            if job.job.queue != queue
        ]
        surplus, last = min([(job.weighted_surplus, key) for key, job in jobs.items()])
        cost = Cost(
            count / slots,
            count,
            sum([victim.pod.protected for victim in victims]),
            sum([victim.pod.running for victim in victims]),
            max([found.right for found in others], default=OWN.right),
            min([found.share for found in others], default=OWN.share),
            -surplus,
            -max([pod.index for pod in pods[last]]),
        )
        return Option(cost, min([pod.key for pod in pods[last]]), victims, slots)


class BestFirst(Generic[P]):
    """Places in the order of their options' costs, each looked at only when it stands in front."""

    def __init__(
        self,
        places: Iterable[P],
        least: Callable[[P], Cost | None],
        look: Callable[[P], Option | None],
    ) -> None:
        """`least`: a cost that the option of a place does not go below; None if it has none."""
        self._least, self._look = least, look
        self._heap = [(cost, place) for place in places if (cost := least(place)) is not None]
        heapq.heapify(self._heap)

    def enter(self, places: Iterable[P]) -> None:
        """Places that are new, or whose options may have become cheaper."""
        for place in places:
            cost = self._least(place)
            if cost is not None:
                heapq.heappush(self._heap, (cost, place))

    def first(
        self, but: Collection[P] = (), below: tuple[float, ...] | None = None
    ) -> Option | None:
        """The cheapest of all places `but` these; None if it has no cost `below` this one, or below
        the first fields of one."""
        heap = self._heap
        looked: dict[P, Option | None] = {}
        aside: list[tuple[Cost, P]] = []
        found: Option | None = None
        while heap and (below is None or heap[0][0] < below):
            cost, place = heap[0]
            if place not in looked:
                looked[place] = self._look(place)
            option = looked[place]
            if option is None:
                heapq.heappop(heap)
            elif option.cost > cost:
                heapq.heapreplace(heap, (option.cost, place))
            elif place in but:
                aside.append(heapq.heappop(heap))
            else:
                found = option
                break
        for entry in aside:
            heapq.heappush(heap, entry)
        return found
