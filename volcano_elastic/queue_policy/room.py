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
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
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
        self._counts = dict.fromkeys(nodes.eligible(shape), 0)
        self._seen = len(nodes.changes)
        self._total = 0
        self._heap: list[tuple[int, str, int]] = []
        """Of ties the first by name: a node's number is of no meaning."""
        for n in self._counts:
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

    def admit(self, n: int, admitted: bool) -> None:
        """Whether node n takes such pods at all has changed."""
        if admitted:
            self._counts[n] = 0
            self._update(n)
        else:
            self._total -= self._counts.pop(n)

    def _update(self, n: int) -> None:
        old = self._counts.get(n)
        if old is None:
            return
        new = self.count(n)
        if new != old:
            self._counts[n] = new
            self._total += new - old
            if new:
                heapq.heappush(self._heap, (new, self._nodes.nodes[n].name, n))

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
            count, _, n = heap[0]
            if self._counts.get(n) == count:
                return n
            heapq.heappop(heap)
        return None


class Free:
    """What is free on all nodes that take pods, less what is taken, by dimension; kept up to date
    from the change log."""

    def __init__(self, nodes: NodeRoom, kind: Room) -> None:
        self._nodes, self._kind = nodes, kind
        self._seen = len(nodes.changes)
        self._of: dict[int, tuple[Node, Vector, Vector]] = {}
        """What the total was made of: the node, what there is, what is taken."""
        self._total = [0] * len(nodes.dimensions.names)
        for n in range(len(nodes.nodes)):
            self._update(n)

    def total(self) -> list[int]:
        changes = self._nodes.changes
        if self._seen < len(changes):
            for n in set(changes[self._seen :]):
                self._update(n)
            self._seen = len(changes)
        return list(self._total)

    def _update(self, n: int) -> None:
        nodes = self._nodes
        old = self._of.get(n)
        new = (nodes.nodes[n], nodes.bases[self._kind][n], nodes.taken[n])
        if old is not None:
            if old[0] is new[0] and old[1] is new[1] and old[2] is new[2]:
                # Most have only been taken from, and given back.
                return
            self._add(old, -1)
        self._of[n] = new
        self._add(new, 1)

    def _add(self, found: tuple[Node, Vector, Vector], sign: int) -> None:
        node, base, taken = found
        if node.ready and not node.unschedulable:
            for i, amount in enumerate(base):
                self._total[i] += sign * max(0, amount - taken[i])


class NodeRoom:
    """Nodes have numbers, in no order; one that has gone keeps its number, and what is on it."""

    def __init__(self, nodes: Iterable[Node], dimensions: Dimensions) -> None:
        self.dimensions = dimensions
        self.nodes: list[Node] = []
        self._index: dict[str, int] = {}
        """Of those that are there."""
        self._numbers: dict[str, int] = {}
        self.allocatable: list[Vector] = []
        self.bases: tuple[list[Vector], list[Vector], list[Vector]] = ([], [], [])
        self.taken: list[Vector] = []
        self.changes: list[int] = []
        self._journal: list[tuple[int, Vector, Vector]] = []
        self._slots: dict[tuple[Shape, Room], Slots] = {}
        self._free: dict[Room, Free] = {}
        self._eligible: dict[tuple[object, object, object], tuple[Shape, list[int]]] = {}
        self._per_node: dict[Shape, int] = {}
        self.change((), sorted(nodes, key=lambda node: node.name))

    def change(self, gone: Iterable[Node], come: Sequence[Node]) -> set[Shape]:
        """Before planning starts: nodes that are not there any more, or not as they were, and those
        that are now. The shapes of which the largest node takes more or fewer than before."""
        names = {node.name for node in come}
        for node in gone:
            if node.name not in names:
                self._set(Node(node.name, {}, ready=False), self._numbers[node.name])
                del self._index[node.name]
        for node in come:
            n = self._index[node.name] = self._number(node.name)
            self._set(node, n)
        suspects = [self._index[node.name] for node in come]
        changed: set[Shape] = set()
        for shape, most in list(self._per_node.items()):
            larger = any(self._takes(n, shape) > most for n in suspects)
            if larger or not any(self._takes(n, shape) >= most for n in self.eligible(shape)):
                del self._per_node[shape]
                if self.per_node(shape) != most:
                    changed.add(shape)
        return changed

    def _number(self, name: str) -> int:
        n = self._numbers.get(name)
        if n is None:
            n = self._numbers[name] = len(self.nodes)
            zero = (0,) * len(self.dimensions.names)
            self.nodes.append(Node(name, {}, ready=False))
            for vectors in (self.allocatable, *self.bases, self.taken):
                vectors.append(zero)
        return n

    def _set(self, node: Node, n: int) -> None:
        self.nodes[n] = node
        old, new = self.allocatable[n], self.dimensions.allocatable(node)
        if new != old:
            self.allocatable[n] = new
            for kind in (Room.IDLE, Room.COMING):
                base = self.bases[kind]
                base[n] = tuple(a + b - c for a, b, c in zip(base[n], new, old, strict=True))
        self.changes.append(n)
        for key, (shape, eligible) in self._eligible.items():
            admitted = admits(node, shape)
            if admitted == (n in eligible):
                continue
            if admitted:
                insort(eligible, n, key=lambda n: self.nodes[n].name)
            else:
                eligible.remove(n)
            for (other, _), slots in self._slots.items():
                if _place_key(other) == key:
                    slots.admit(n, admitted)

    def index(self, name: str | None) -> int | None:
        """The number of a node; None if it is not there."""
        return None if name is None else self._index.get(name)

    @property
    def crowded(self) -> bool:
        """Most of what it keeps is of nodes that have gone."""
        return len(self.nodes) > 2 * len(self._index) + 64

    def occupy(self, kind: Room, name: str, vector: Vector, times: int) -> None:
        """Before planning starts: `times` more such pods are on the node of this name, which need
        not be there, as far as `kind` goes."""
        n = self._number(name)
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
            self._free.clear()

    def expect(self, surplus: Mapping[int, Vector]) -> None:
        """Sets potential: coming, and by node what surplus could leave besides."""
        potential = list(self.bases[Room.COMING])
        for n, vector in surplus.items():
            potential[n] = tuple(a + b for a, b in zip(potential[n], vector, strict=True))
        self.bases = (self.bases[0], self.bases[1], potential)
        for key in [key for key in self._slots if key[1] is Room.POTENTIAL]:
            del self._slots[key]

    def eligible(self, shape: Shape) -> list[int]:
        """Numbers of the nodes that take such pods at all, by the nodes' names."""
        key = _place_key(shape)
        found = self._eligible.get(key)
        if found is None:
            numbers = [n for n, node in enumerate(self.nodes) if admits(node, shape)]
            numbers.sort(key=lambda n: self.nodes[n].name)
            found = self._eligible[key] = (shape, numbers)
        return found[1]

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

    def free(self, kind: Room) -> list[int]:
        """What is free on all nodes that take pods, less what is taken, by dimension."""
        found = self._free.get(kind)
        if found is None:
            found = self._free[kind] = Free(self, kind)
        return found.total()

    def was_idle(self, shape: Shape) -> bool:
        """Whether such a pod would find idle room if the plan had promised none."""
        if self.slots(shape, Room.IDLE).total():
            return True
        idle, eligible = self.bases[Room.IDLE], self.eligible(shape)
        taken = {n for n, _, _ in self._journal}.intersection(eligible)
        return any(all(idle[n][i] >= need for i, need in shape.needs) for n in taken)

    def everything(self) -> list[int]:
        """What all nodes offer, by dimension; Volcano counts those that are not ready too."""
        zero = [0] * len(self.dimensions.names)
        return [sum(column) for column in zip(*self.allocatable, strict=True)] or zero

    def per_node(self, shape: Shape) -> int:
        """How many such pods the largest node takes when it is empty; at least 1."""
        found = self._per_node.get(shape)
        if found is None:
            most = max((self._takes(n, shape) for n in self.eligible(shape)), default=1)
            found = self._per_node[shape] = max(1, most)
        return found

    def _takes(self, n: int, shape: Shape) -> int:
        room = self.allocatable[n]
        return min((room[i] // amount for i, amount in shape.needs), default=0)


def _place_key(shape: Shape) -> tuple[object, object, object]:
    return (shape.selector, shape.tolerations, shape.affinity)


def leaving(pod: Pod, now: datetime) -> bool:
    """Whether a terminating pod's room counts as coming."""
    return pod.terminating and (pod.leaves_by is None or now <= pod.leaves_by + LOST_AFTER)
