"""Room on nodes while a plan is made: what is idle, what is leaving, what has been given away.

For every node:

  idle         allocatable less every pod on it, terminating ones included
  releasing    idle plus what leaves: terminating pods within their grace, and the pods that this
               plan removes
  reclaimable  releasing plus all surplus that could be asked to leave: an upper bound, worked out
               only where a claim needs it

and `taken`, what this plan has promised to claims, waiting pods and growth. Promises are made from
idle room first, so growth (idle only) can never stand in a claim's way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import IntEnum
from operator import add, sub

from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.fit import Shape, Vector
from volcano_elastic.cluster_state.node_state import slots_in
from volcano_elastic.queue_policy.journal import Journal


class Room(IntEnum):
    """Kinds of room on a node: idle, held by leaving pods as well, held by surplus as well."""

    IDLE = 0
    RELEASING = 1
    RECLAIMABLE = 2


class Slots:
    """Counts how many more pods of one shape each node takes; follows the change log."""

    def __init__(self, nodes: NodeRoom, shape: Shape, kind: Room) -> None:
        self._shape, self._base = shape, nodes.bases[kind]
        self._taken = nodes.taken
        self._changes = nodes.takes if kind is Room.IDLE else nodes.changes
        self._seen = len(self._changes)
        counts = list(nodes.cluster.idle_slots(shape))
        changed: Iterable[int] = nodes.changed
        if kind is not Room.IDLE:
            changed = {*changed, *nodes.releasing} if kind is Room.RELEASING else range(len(counts))
        for n in changed:
            if counts[n] >= 0:
                counts[n] = self.count(n)
        self.counts = counts
        """By node, when last asked; negative where such pods can't go."""
        # Nodes are in the order of their names, and of ties the first by name goes first.
        self._heap = [(count, n) for n, count in enumerate(counts) if count > 0]
        self._total = sum(count for count, _ in self._heap)
        heapq.heapify(self._heap)

    def count(self, n: int) -> int:
        """Return how many more pods fit on node n at this moment."""
        base, taken = self._base[n], self._taken.get(n)
        return slots_in(base if taken is None else tuple(map(sub, base, taken)), self._shape)

    def _refresh(self) -> None:
        if self._seen < len(self._changes):
            for n in set(self._changes[self._seen :]):
                old = self.counts[n]
                if old >= 0:
                    new = self.counts[n] = self.count(n)
                    self._total += new - old
                    if new and new != old:
                        heapq.heappush(self._heap, (new, n))
            self._seen = len(self._changes)

    def total(self) -> int:
        """Return how many pods of the shape fit on all nodes together."""
        self._refresh()
        return self._total

    def tightest(self) -> int | None:
        """The node with the fewest slots left (but one), so that big holes stay whole."""
        self._refresh()
        heap = self._heap
        while heap:
            count, n = heap[0]
            if self.counts[n] == count:
                return n
            heapq.heappop(heap)
        return None


class NodeRoom:
    """Nodes are told by their number in the order of their names."""

    def __init__(self, cluster: ClusterState, now: datetime, journal: Journal) -> None:
        self.cluster, self._journal = cluster, journal
        self.states = list(cluster.nodes.values())
        idle, releasing = list(cluster.idle_rows), list(cluster.idle_rows)
        self.releasing = cluster.terminating
        for n in self.releasing:
            for vector in self.states[n].leaving(now):
                releasing[n] = _sum(releasing[n], vector)
        self.bases: tuple[list[Vector], list[Vector], list[Vector]] = (idle, releasing, [])
        self.taken: dict[int, Vector] = {}
        self.changed: set[int] = set()
        """Nodes of which anything has changed since the plan began."""
        self.changes: list[int] = []
        """The same as a log: each time again."""
        self.takes: list[int] = []
        """Those of them that changed what is idle."""
        self.kept: Mapping[int, Vector] = {}
        """By node, what is taken for pods of others until a scheduler has bound them."""
        self._slots: tuple[dict[Shape, Slots], ...] = ({}, {}, {})

    def index(self, name: str | None) -> int | None:
        """The number of a node; None if it is not there."""
        return None if name is None else self.cluster.numbers.get(name)

    def slots(self, shape: Shape, kind: Room) -> Slots:
        """Return the counts for pods of a shape in a kind of room, made at the first call."""
        made = self._slots[kind]
        if shape not in made:
            if kind is Room.RECLAIMABLE and not self.bases[kind]:
                surplus = [state.surplus_total for state in self.states]
                self.bases[kind].extend(map(_sum, self.bases[Room.RELEASING], surplus))
            made[shape] = Slots(self, shape, kind)
        return made[shape]

    def contested(self, shape: Shape) -> bool:
        """Return whether a scheduler might bind such a pod to room that is kept for another."""
        return any(
            self.states[n].idle_slots(shape) >= 0
            and slots_in(_sum(self.left(n), vector), shape) > 0
            for n, vector in self.kept.items()
        )

    def left(self, n: int, kind: Room = Room.RELEASING) -> Vector:
        """Room of node n that has not been given away."""
        base, taken = self.bases[kind][n], self.taken.get(n)
        return base if taken is None else tuple(map(sub, base, taken))

    def take(self, n: int, vector: Vector, times: int = 1) -> None:
        """Give away room on node n, or take it back if `times` is negative."""
        self._take(n, vector, times)
        self._journal.note(self._take, n, vector, -times)

    def _take(self, n: int, vector: Vector, times: int) -> None:
        taken = self.taken.get(n)
        if taken is None:
            self.taken[n] = tuple([amount * times for amount in vector])
        else:
            self.taken[n] = tuple([a + b * times for a, b in zip(taken, vector, strict=True)])
        self.takes.append(n)
        self._note(n)

    def leave(self, n: int, vector: Vector, *, reclaimed: bool) -> None:
        """A pod on node n is told to go: its room is releasing, not idle yet.

        reclaimed: it was counted as reclaimable.
        """
        for kind in (Room.RELEASING, Room.RECLAIMABLE)[: 2 - reclaimed]:
            if base := self.bases[kind]:
                self._journal.note(self._set, kind, n, base[n])
                self._set(kind, n, _sum(base[n], vector))

    def _set(self, kind: Room, n: int, vector: Vector) -> None:
        self.bases[kind][n] = vector
        self._note(n)

    def _note(self, n: int) -> None:
        self.changed.add(n)
        self.changes.append(n)

    def place(self, shape: Shape, count: int, kind: Room) -> list[int]:
        """Promise room to up to `count` pods, idle room first; the nodes, one for each placed."""
        placed: list[int] = []
        for room in (Room.IDLE, Room.RELEASING)[: kind + 1]:
            if len(placed) == count:
                break
            slots = self.slots(shape, room)
            while len(placed) < count:
                n = slots.tightest()
                if n is None:
                    break
                # After one more it is still the tightest, until it is full.
                times = min(slots.counts[n], count - len(placed))
                self.take(n, shape.vector, times)
                placed += [n] * times
        return placed

    def place_on(self, n: int, shape: Shape, count: int) -> int:
        """Promise releasing room on node n to up to `count` pods; to how many."""
        fits = self.cluster.idle_slots(shape)[n] >= 0
        times = min(count, slots_in(self.left(n), shape)) if fits else 0
        if times:
            self.take(n, shape.vector, times)
        return times

    def free(self, kind: Room) -> list[int]:
        """Amounts free on all nodes that take pods, less what is taken, by dimension."""
        rows = [self.left(n, kind) for n, s in enumerate(self.states) if s.node.takes_pods]
        return [sum([a for a in column if a > 0]) for column in zip(*rows, strict=True)]


def _sum(base: Vector, vector: Vector) -> Vector:
    return tuple(map(add, base, vector))
