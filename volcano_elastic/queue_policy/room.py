"""Room on nodes: what is idle, what is leaving, what this plan has given away.

For every node:

  idle       allocatable less every pod on it, terminating ones included
  coming     idle plus what leaves: terminating pods within their grace, and the pods that this plan
             removes
  potential  coming plus all surplus that could be asked to leave: an upper bound, worked out only
             where a claim needs it

and `taken`, what this plan has promised to claims, waiting pods and growth. Promises are made from
idle room first, so growth (idle only) can never stand in a claim's way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import IntEnum

from volcano_elastic.queue_policy.fit import UNLIMITED, Dimensions, Shape, Vector, admits
from volcano_elastic.queue_policy.snapshot import Node, Pod

LOST_AFTER = timedelta(seconds=5)
"""A pod that is still there this long after its grace ended is not coming free soon."""


class Room(IntEnum):
    IDLE = 0
    COMING = 1
    POTENTIAL = 2


class Slots:
    """How many more pods of one shape each node takes, kept up to date from the change log."""

    def __init__(self, nodes: NodeRoom, shape: Shape, kind: Room) -> None:
        self._nodes = nodes
        self._shape = shape
        self._base = nodes.bases[kind]
        self._eligible = nodes.eligible(shape)
        self._counts = dict.fromkeys(self._eligible, 0)
        self._seen = len(nodes.changes)
        self._total = 0
        self._heap: list[tuple[int, int]] = []
        for n in self._eligible:
            self._update(n)

    def count(self, n: int) -> int:
        """How many more fit on node n, at this moment."""
        base, taken = self._base[n], self._nodes.taken[n]
        slots = UNLIMITED
        for i, amount in self._shape.needs:
            fits = (base[i] - taken[i]) // amount
            if fits < slots:
                slots = fits
        return slots if slots > 0 else 0

    def would_fit(self, n: int, more: Vector) -> bool:
        """Whether one fits on node n once `more` has left it."""
        if n not in self._counts:
            return False
        base, taken = self._base[n], self._nodes.taken[n]
        return all(base[i] - taken[i] + more[i] >= amount for i, amount in self._shape.needs)

    def _update(self, n: int) -> None:
        old = self._counts.get(n)
        if old is None:
            return
        new = self.count(n)
        if new != old:
            self._counts[n] = new
            self._total += new - old
            if new:
                heapq.heappush(self._heap, (new, n))

    def _refresh(self) -> None:
        changes = self._nodes.changes
        if self._seen < len(changes):
            for n in set(changes[self._seen :]):
                self._update(n)
            self._seen = len(changes)

    def total(self) -> int:
        self._refresh()
        return self._total

    def tightest(self) -> int | None:
        """The node with the fewest slots left (but one), so that big holes stay whole."""
        self._refresh()
        heap = self._heap
        while heap:
            count, n = heap[0]
            if self._counts[n] == count:
                return n
            heapq.heappop(heap)
        return None


class NodeRoom:
    def __init__(self, nodes: Iterable[Node], dimensions: Dimensions) -> None:
        self.nodes: tuple[Node, ...] = tuple(sorted(nodes, key=lambda node: node.name))
        self.dimensions = dimensions
        self._index = {node.name: n for n, node in enumerate(self.nodes)}
        self.allocatable = [dimensions.allocatable(node) for node in self.nodes]
        zero = (0,) * len(dimensions.names)
        self.bases: tuple[list[Vector], list[Vector], list[Vector]] = (
            list(self.allocatable),
            list(self.allocatable),
            list(self.allocatable),
        )
        self.taken: list[Vector] = [zero] * len(self.nodes)
        self.changes: list[int] = []
        self._journal: list[tuple[int, Vector, Vector]] = []
        self._slots: dict[tuple[Shape, Room], Slots] = {}
        self._eligible: dict[tuple[object, object, object], list[int]] = {}
        self._per_node: dict[Shape, int] = {}
        self._idle: list[Vector | None] | None = None
        self._idle_total: list[int] = []
        self._idle_seen = 0

    def index(self, name: str | None) -> int | None:
        return None if name is None else self._index.get(name)

    def occupy(self, kind: Room, n: int, vector: Vector, times: int) -> None:
        """Before planning starts: `times` more such pods are on node n, as far as `kind` goes."""
        self.bases[kind][n] = tuple(
            a - b * times for a, b in zip(self.bases[kind][n], vector, strict=True)
        )
        self.changes.append(n)

    def begin(self) -> None:
        """Forget all that the last plan did."""
        self.rollback(0)
        if len(self.changes) > 8 * len(self.nodes) + 1024:
            # Cheaper than to have every count go through them.
            self.changes.clear()
            self._slots.clear()
            self._idle = None

    def expect(self, surplus: Mapping[int, Vector]) -> None:
        """Sets potential: coming, and by node what surplus could leave besides."""
        potential = list(self.bases[Room.COMING])
        for n, vector in surplus.items():
            potential[n] = tuple(a + b for a, b in zip(potential[n], vector, strict=True))
        self.bases = (self.bases[0], self.bases[1], potential)
        for key in [key for key in self._slots if key[1] is Room.POTENTIAL]:
            del self._slots[key]

    def eligible(self, shape: Shape) -> list[int]:
        key = (shape.selector, shape.tolerations, shape.affinity)
        found = self._eligible.get(key)
        if found is None:
            found = [n for n, node in enumerate(self.nodes) if admits(node, shape)]
            self._eligible[key] = found
        return found

    def slots(self, shape: Shape, kind: Room) -> Slots:
        found = self._slots.get((shape, kind))
        if found is None:
            found = self._slots[shape, kind] = Slots(self, shape, kind)
        return found

    # Changes, which `rollback` can take back.

    def mark(self) -> int:
        return len(self._journal)

    def _changed(self, n: int, coming: Vector, taken: Vector) -> None:
        self._journal.append((n, self.bases[Room.COMING][n], self.taken[n]))
        self.bases[Room.COMING][n] = coming
        self.taken[n] = taken
        self.changes.append(n)

    def take(self, n: int, vector: Vector, times: int = 1) -> None:
        taken = tuple(a + b * times for a, b in zip(self.taken[n], vector, strict=True))
        self._changed(n, self.bases[Room.COMING][n], taken)

    def give_back(self, n: int, vector: Vector) -> None:
        """Undo one `take`, out of order."""
        taken = tuple(a - b for a, b in zip(self.taken[n], vector, strict=True))
        self._changed(n, self.bases[Room.COMING][n], taken)

    def leave(self, n: int, vector: Vector) -> None:
        """A pod on node n is told to go: its room is coming, not idle yet."""
        coming = tuple(a + b for a, b in zip(self.bases[Room.COMING][n], vector, strict=True))
        self._changed(n, coming, self.taken[n])

    def rollback(self, mark: int) -> None:
        while len(self._journal) > mark:
            n, coming, taken = self._journal.pop()
            self.bases[Room.COMING][n] = coming
            self.taken[n] = taken
            self.changes.append(n)

    def place(self, shape: Shape, count: int, kind: Room) -> list[int]:
        """Promise room to up to `count` pods, idle room first; the nodes, one for each placed."""
        placed: list[int] = []
        for room in (Room.IDLE, Room.COMING)[: kind + 1]:
            if len(placed) == count:
                break
            slots = self.slots(shape, room)
            while len(placed) < count:
                n = slots.tightest()
                if n is None:
                    break
                # After one more it is still the tightest, until it is full.
                times = min(slots.count(n), count - len(placed))
                self.take(n, shape.vector, times)
                placed += [n] * times
        return placed

    def idle(self) -> list[int]:
        """What is idle on all nodes that take pods, by dimension, before the plan gives any."""
        if self._idle is None:
            self._idle = [None] * len(self.nodes)
            self._idle_total, news = [0] * len(self.dimensions.names), set(range(len(self.nodes)))
        else:
            news = set(self.changes[self._idle_seen :])
        self._idle_seen = len(self.changes)
        total = self._idle_total
        for n in news:
            node = self.nodes[n]
            if node.ready and not node.unschedulable:
                before, base = self._idle[n], self.bases[Room.IDLE][n]
                for i, amount in enumerate(base):
                    old = before[i] if before is not None else 0
                    total[i] += max(0, amount) - max(0, old)
                self._idle[n] = base
        return list(total)

    def free_in_all(self, kind: Room) -> list[int]:
        """What is free on all nodes that take pods, less what is taken, by dimension."""
        free = [
            (self.bases[kind][n], self.taken[n])
            for n, node in enumerate(self.nodes)
            if node.ready and not node.unschedulable
        ]
        return [
            sum(max(0, base[i] - taken[i]) for base, taken in free)
            for i in range(len(self.dimensions.names))
        ]

    def everything(self) -> list[int]:
        """What all nodes offer, by dimension; Volcano counts those that are not ready too."""
        zero = [0] * len(self.dimensions.names)
        return [sum(column) for column in zip(*self.allocatable, strict=True)] or zero

    def per_node(self, shape: Shape) -> int:
        """How many such pods the largest node takes when it is empty; at least 1."""
        found = self._per_node.get(shape)
        if found is None:
            most = (
                min((self.allocatable[n][i] // amount for i, amount in shape.needs), default=0)
                for n in self.eligible(shape)
            )
            found = self._per_node[shape] = max(1, max(most, default=1))
        return found


def leaving(pod: Pod, now: datetime) -> bool:
    """Whether a terminating pod's room counts as coming."""
    return pod.terminating and (pod.leaves_by is None or now <= pod.leaves_by + LOST_AFTER)
