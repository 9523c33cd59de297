"""The usual case of shrinking, quickly: each pod that leaves makes room for exactly one.

That is so where no surplus pod is larger than the pod that waits, and none leaves in units. Then
the cheapest option is one pod of the first job in order, and nodes need not be compared: whose
queue, its share, the largest surplus (see `shrink`). What is found here is checked on its node.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from volcano_elastic.queue_policy.fit import Shape, Vector
from volcano_elastic.queue_policy.queue_room import Full, QueueRoom
from volcano_elastic.queue_policy.ranking import Line, Ranking
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.victim import Victim

Place = tuple[bool, bool, float, str, Standing]
"""Its best pod is protected, and runs; negative spare; key."""

Turn = tuple[bool, bool, int, float, float, str, int]
"""Its best job's best pod is protected, and runs; whether the queue borrows; negative share of its
deserved; negative spare of its best job; the queue; which of its turns this is."""


class Givers:
    """Calm jobs with surplus, by queue, who gives first first; kept from plan to plan."""

    def __init__(self) -> None:
        self.lines: dict[str, Ranking[Place]] = {}
        self.vectors: Counter[Vector] = Counter()
        """How many jobs have pods that ask for so much."""
        self.whole = 0
        """How many jobs change size by more than one worker."""
        self.pods = 0
        """That might leave."""
        self._places: dict[str, Place] = {}
        self._surplus: dict[str, int] = {}
        """How many pods each might give."""
        self.pods_in: Counter[tuple[str, Vector]] = Counter()
        """That might leave, by queue and what they ask for."""
        self._changed: set[str] = set()

    def put(self, standing: Standing) -> None:
        surplus, queue = _surplus(standing), standing.job.queue
        if not surplus:
            return
        place = _place(standing)
        self._places[standing.job.key] = place
        self._surplus[standing.job.key] = surplus
        if queue not in self.lines:
            self.lines[queue] = Ranking()
        self.lines[queue].put(place)
        self._count(standing, surplus)

    def remove(self, key: str) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self.lines[place[-1].job.queue].remove(place)
            self._count(place[-1], -self._surplus.pop(key))

    def settle(self) -> None:
        for queue in self._changed:
            self.lines[queue].settle()
        self._changed.clear()

    def _count(self, standing: Standing, pods: int) -> None:
        """`pods` are negative when it goes."""
        sign = 1 if pods > 0 else -1
        self._changed.add(standing.job.queue)
        self.vectors[standing.shape.vector] += sign
        self.whole += sign * (standing.unit > 1)
        self.pods += pods
        self.pods_in[standing.job.queue, standing.shape.vector] += pods


class Singles:
    """One plan's search among the givers, and among the jobs that are not calm."""

    def __init__(
        self,
        givers: Givers,
        restless: Iterable[Standing],
        nodes: NodeRoom,
        queues: QueueRoom,
        too_young: Callable[[Pod, Standing], bool],
    ) -> None:
        self._nodes, self._queues, self._too_young = nodes, queues, too_young
        self._lines = {name: Line(line.entries) for name, line in givers.lines.items()}
        self.vectors = {vector for vector, jobs in givers.vectors.items() if jobs}
        """What their pods ask for."""
        self.alone = not givers.whole
        """No pod leaves as part of a unit."""
        self.pods = givers.pods
        """That might leave, at most."""
        for standing in restless:
            surplus = _surplus(standing)
            if surplus:
                self.alone = self.alone and standing.unit == 1
                self.vectors.add(standing.shape.vector)
                self.pods += surplus
                self._lines.setdefault(standing.job.queue, Line()).push(_place(standing))
        self._turns: list[Turn] = []
        self._number = dict.fromkeys(self._lines, 0)
        """Of each queue's turn that counts."""
        self._changed = set(self._lines)

    def suit(self, shape: Shape) -> bool:
        """Whether one pod that leaves makes room for one of `shape` at most, and leaves alone."""
        return self.alone and all(
            vector[i] <= amount for vector in self.vectors for i, amount in shape.needs
        )

    def best(
        self, shape: Shape | None, queue: str, protected: bool, full: Full | None
    ) -> Victim | None:
        """The pod to leave for a claim of `queue`; None if no single one makes room, which is on
        its node for one of `shape`, if any, and in what is `full`, if anything."""
        spent: list[tuple[str, Place]] = []
        found: Victim | None = None
        while found is None:
            name = self._next(queue, protected, full)
            if name is None:
                break
            line = self._lines[name]
            place = line.pop()
            self._changed.add(name)
            standing = place[-1]
            if standing.cost() is None:
                # It may give no more.
                continue
            now = _place(standing)
            if now[:3] != place[:3]:
                line.push(now)
                continue
            pod = None
            if full is None or full.eased(standing.shape.vector):
                pod = self._pod(standing, shape, protected)
            if pod is not None:
                n = self._nodes.index(pod.node)
                assert n is not None
                found = Victim(pod, standing, n)
            spent.append((name, now))
        for name, place in spent:
            self._lines[name].push(place)
        return found

    def changed(self, queue: str) -> None:
        """What the queue holds has changed."""
        self._changed.update(self._lines.keys() & self._queues.chain(queue))

    def _next(self, queue: str, protected: bool, full: Full | None) -> str | None:
        """The queue whose turn it is to give for a claim of `queue`."""
        if full is not None:
            names = (name for name in self._lines if self._queues.within(name, full.queue))
            found = [turn for turn in (self._turn(name, queue) for name in names) if turn]
            return self._first(found, protected)
        for name in sorted(self._changed):
            self._number[name] += 1
            turn = self._turn(name, None)
            if turn is not None:
                heapq.heappush(self._turns, turn)
        self._changed.clear()
        while self._turns and self._turns[0][-1] != self._number[self._turns[0][-2]]:
            heapq.heappop(self._turns)
        return self._first(
            [turn for turn in (self._turn(queue, queue), *self._turns[:1]) if turn], protected
        )

    def _first(self, turns: Iterable[Turn], protected: bool) -> str | None:
        first = min(turns, default=None)
        # Who has only protected pods left comes last.
        return None if first is None or (first[0] and not protected) else first[-2]

    def _turn(self, name: str, claims: str | None) -> Turn | None:
        """When queue `name` has to give for a claim of queue `claims`; None: of any other."""
        head = self._lines[name].head() if name in self._lines else None
        if head is None:
            return None
        vector, rank, share = head[-1].shape.vector, 0, 0.0
        if name != claims:
            if not self._queues.may_take(name, vector):
                return None
            rank, share = 2 - self._queues.borrows(name, vector), self._queues.share(name)
        return (*head[:2], rank, -share, head[2], name, self._number[name])

    def _pod(self, standing: Standing, shape: Shape | None, protected: bool) -> Pod | None:
        """The first to leave whose leaving really makes room on its node, if that matters."""
        nodes = self._nodes
        slots = None if shape is None else nodes.slots(shape, Room.COMING)
        for pod in standing.leavers():
            n = nodes.index(pod.node)
            if n is None or (pod.protected and not protected):
                continue
            fits = slots is None or slots.would_fit(n, standing.shape.vector)
            if fits and not self._too_young(pod, standing):
                return pod
        return None


class Openings:
    """Whether there is a node where one pod's leaving would make room for one of a shape. For a
    larger pod there is none most of the time, and all jobs would be asked in vain."""

    def __init__(self, nodes: NodeRoom, shape: Shape, leaving: Iterable[Vector]) -> None:
        self._changes = nodes.changes
        self._slots = nodes.slots(shape, Room.COMING)
        self._leaving = tuple(leaving)
        self._unknown = list(nodes.eligible(shape))
        self._seen = len(self._changes)

    def any(self) -> bool:
        self._unknown += self._changes[self._seen :]
        self._seen = len(self._changes)
        while self._unknown:
            n = self._unknown[-1]
            if any(self._slots.would_fit(n, vector) for vector in self._leaving):
                return True
            self._unknown.pop()  # until it changes
        return False


def surplus_in(givers: Givers, restless: Iterable[Standing]) -> Iterator[tuple[str, Vector, int]]:
    """Of which queue how many pods of which size might leave, at most."""
    for (queue, vector), pods in givers.pods_in.items():
        yield queue, vector, pods
    for standing in restless:
        yield standing.job.queue, standing.shape.vector, _surplus(standing)


def _surplus(standing: Standing) -> int:
    """Pods that the job might give; 0 if none."""
    surplus = standing.size - standing.job.min
    if surplus < standing.unit or not standing.movable:
        return 0
    return min(surplus, len(standing.bound))


def _place(standing: Standing) -> Place:
    return (*standing.softest, -standing.spare, standing.job.key, standing)
