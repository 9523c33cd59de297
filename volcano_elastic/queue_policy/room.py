"""Room on nodes and in queues: what is idle, what is leaving, what this plan has given away.

For every node:

  idle       allocatable less every pod on it, terminating ones included
  coming     idle plus what leaves: terminating pods within their grace, and the pods that this plan
             removes
  potential  coming plus all surplus that could be asked to leave: an upper bound

and `taken`, what this plan has promised to claims, waiting pods and growth. Promises are made from
idle room first, so growth (idle only) can never stand in a claim's way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum

from volcano_elastic.api.queue_policy import ForOtherQueues, QueuePolicy
from volcano_elastic.queue_policy.fit import UNLIMITED, Dimensions, Shape, Vector, admits
from volcano_elastic.queue_policy.snapshot import Node, Pod, Queue, Resources

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
        self._eligible: dict[tuple[object, object], list[int]] = {}

    def index(self, name: str | None) -> int | None:
        return None if name is None else self._index.get(name)

    def occupy(self, kind: Room, n: int, vector: Vector, times: int) -> None:
        """Before planning starts: `times` such pods are on node n, as far as `kind` goes."""
        self.bases[kind][n] = tuple(
            a - b * times for a, b in zip(self.bases[kind][n], vector, strict=True)
        )

    def eligible(self, shape: Shape) -> list[int]:
        key = (shape.selector, shape.tolerations)
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

    def take(self, n: int, vector: Vector) -> None:
        taken = tuple(a + b for a, b in zip(self.taken[n], vector, strict=True))
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
                self.take(n, shape.vector)
                placed.append(n)
        return placed

    def free_in_all(self) -> list[int]:
        """What is coming on all nodes that take pods, less what is taken, by dimension."""
        total = [0] * len(self.dimensions.names)
        for n, node in enumerate(self.nodes):
            if node.ready and not node.unschedulable:
                coming, taken = self.bases[Room.COMING][n], self.taken[n]
                for i in range(len(total)):
                    total[i] += max(0, coming[i] - taken[i])
        return total


class QueueRoom:
    """What each queue holds and may hold: Volcano's realCapability, one level deep.

    realCapability = min(capability, all nodes - everybody's guarantees + its own guarantee)
    """

    def __init__(
        self,
        queues: Iterable[Queue],
        nodes: NodeRoom,
        policies: Mapping[str, QueuePolicy],
    ) -> None:
        self._policies = policies
        self._queues = {queue.name: queue for queue in queues}
        self._lenient = not self._queues
        self._names = nodes.dimensions.names
        self.used: dict[str, list[int]] = {name: [0] * len(self._names) for name in self._queues}
        everything = [sum(column) for column in zip(*nodes.allocatable, strict=True)]
        everything = everything or [0] * len(self._names)
        ordered = [self._queues[name] for name in sorted(self._queues)]
        self.guarantees = {q.name: self._amounts(q.guarantee, 0) for q in ordered}
        guaranteed = [sum(column) for column in zip(*self.guarantees.values(), strict=True)]
        self.any_guarantee = any(guaranteed)
        self._caps: dict[str, list[int]] = {}
        for queue in ordered:
            caps = self._amounts(queue.capability, UNLIMITED)
            for i, held in enumerate(guaranteed):
                if held:
                    own = self.guarantees[queue.name][i]
                    caps[i] = min(caps[i], everything[i] - held + own)
            self._caps[queue.name] = caps
        self._deserved = {q.name: self._amounts(q.deserved, -1) for q in ordered}

    def _amounts(self, resources: Resources | None, absent: int) -> list[int]:
        given = resources or {}
        return [given.get(name, absent) for name in self._names]

    def closed(self, name: str) -> str | None:
        """Why nothing can start in the queue, or None."""
        if self._lenient:
            return None
        queue = self._queues.get(name)
        if queue is None:
            return f"queue {name} does not exist"
        return None if queue.open else f"queue {name} is closed"

    def use(self, name: str, vector: Sequence[int], times: int = 1) -> None:
        used = self.used.get(name)
        if used is None:
            used = self.used[name] = [0] * len(self._names)
        for i, amount in enumerate(vector):
            used[i] += amount * times

    def lacking(self, name: str, vector: Sequence[int]) -> list[tuple[int, int]]:
        """(dimension, amount) by which the queue's room is too small for `vector` more."""
        caps = self._caps.get(name)
        if caps is None:
            return []
        used = self.used[name]
        return [
            (i, used[i] + amount - caps[i])
            for i, amount in enumerate(vector)
            if amount > 0 and used[i] + amount > caps[i]
        ]

    def fits_often(self, name: str, vector: Sequence[int]) -> int:
        """How many times `vector` fits into the queue's room."""
        caps = self._caps.get(name)
        if caps is None:
            return UNLIMITED
        used = self.used[name]
        often = [(caps[i] - used[i]) // amount for i, amount in enumerate(vector) if amount > 0]
        return max(0, min(often, default=UNLIMITED))

    def beyond_deserved(self, name: str, vector: Sequence[int]) -> bool:
        """Whether `vector` more would be borrowed; a queue without deserved borrows everything."""
        deserved = self._deserved.get(name)
        if deserved is None:
            return True
        used = self.used[name]
        listed = [i for i, amount in enumerate(vector) if amount > 0 and deserved[i] >= 0]
        return not listed or any(used[i] + vector[i] > deserved[i] for i in listed)

    def share(self, name: str) -> float:
        """The largest used / deserved of the queue's listed resources; 0 where none is listed."""
        deserved = self._deserved.get(name)
        if deserved is None:
            return 0.0
        used = self.used[name]
        return max((used[i] / d for i, d in enumerate(deserved) if d > 0), default=0.0)

    def borrows(self, name: str, vector: Sequence[int]) -> bool:
        """Whether the queue holds `vector` beyond both its deserved and its guarantee."""
        deserved, guarantee = self._deserved.get(name), self.guarantees.get(name)
        if deserved is None or guarantee is None:
            return True
        used = self.used[name]
        return all(
            used[i] - amount >= max(deserved[i], guarantee[i])
            for i, amount in enumerate(vector)
            if amount > 0 and (deserved[i] >= 0 or guarantee[i] > 0)
        )

    def may_take(self, victim_queue: str, vector: Sequence[int]) -> bool:
        """Whether a claim of another queue may have a pod of `victim_queue` removed."""
        policy = self._policies.get(victim_queue)
        if policy is None or policy.shrink.for_other_queues is ForOtherQueues.ANY:
            return True
        return self.borrows(victim_queue, vector)

    def owed_to_others(self, name: str) -> list[int]:
        """What other queues' guarantees still lack, by dimension."""
        owed = [0] * len(self._names)
        for other, guarantee in self.guarantees.items():
            if other != name:
                used = self.used[other]
                for i, amount in enumerate(guarantee):
                    owed[i] += max(0, amount - used[i])
        return owed


def leaving(pod: Pod, now: datetime) -> bool:
    """Whether a terminating pod's room counts as coming."""
    return pod.terminating and (pod.leaves_by is None or now <= pod.leaves_by + LOST_AFTER)
