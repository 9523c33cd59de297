"""The usual case of shrinking, quickly: each pod that leaves makes room for exactly one.

That is so where no surplus pod is larger than the pod that waits, and none leaves in units. Then
the cheapest option is one pod of the first job in order, and nodes need not be compared: whose
queue, its share, the largest surplus (see `shrink`). What is found here is checked on its node.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from volcano_elastic.queue_policy.fit import Shape, Vector
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing, leave_order
from volcano_elastic.queue_policy.victim import Victim

Place = tuple[bool, bool, float, str, Standing]
"""Its best pod is protected, and runs; negative spare; key."""


class Singles:
    def __init__(
        self,
        standings: Iterable[Standing],
        nodes: NodeRoom,
        queues: QueueRoom,
        too_young: Callable[[Pod, Standing], bool],
    ) -> None:
        self._nodes, self._queues, self._too_young = nodes, queues, too_young
        self._heaps: dict[str, list[Place]] = {}
        self._vectors: set[Vector] = set()
        self._whole = False
        """Some jobs change size by more than one worker."""
        self.pods = 0
        """That might leave."""
        for standing in standings:
            surplus = standing.size - standing.job.min
            if surplus < standing.unit or not standing.movable:
                continue
            self._whole = self._whole or standing.unit > 1
            self._vectors.add(standing.shape.vector)
            self.pods += min(surplus, len(standing.bound))
            protected, running = standing.softest
            place = (protected, running, -standing.spare, standing.job.key, standing)
            self._heaps.setdefault(standing.job.queue, []).append(place)
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._ranks: dict[str, tuple[int, float]] = {}

    def suit(self, shape: Shape) -> bool:
        """Whether one pod that leaves makes room for one of `shape` at most, and leaves alone."""
        return not self._whole and all(
            vector[i] <= amount for vector in self._vectors for i, amount in shape.needs
        )

    def best(self, shape: Shape, queue: str, protected: bool) -> Victim | None:
        """The pod to leave for a claim of `queue`; None if no single one makes room."""
        spent: list[tuple[str, Place]] = []
        found: Victim | None = None
        while found is None:
            name = self._next(queue, protected)
            if name is None:
                break
            heap = self._heaps[name]
            place = heapq.heappop(heap)
            standing = place[-1]
            now = self._place(standing)
            if now is not None and now[:3] != place[:3]:
                heapq.heappush(heap, now)
                continue
            pod = None if now is None else self._pod(standing, shape, protected)
            if pod is not None:
                n = self._nodes.index(pod.node)
                assert n is not None
                found = Victim(pod, standing, n, standing.shape.vector)
            if now is not None:
                spent.append((name, now))
        for name, place in spent:
            heapq.heappush(self._heaps[name], place)
        return found

    def changed(self, queue: str) -> None:
        """What the queue holds has changed."""
        self._ranks.pop(queue, None)

    def _next(self, queue: str, protected: bool) -> str | None:
        """The queue whose turn it is to give for a claim of `queue`."""
        turns = (
            (*heap[0][:2], *((0, 0.0) if name == queue else self._rank(name)), heap[0][2], name)
            for name, heap in self._heaps.items()
            if heap
            and (protected or not heap[0][0])
            and (name == queue or self._queues.may_take(name, heap[0][-1].shape.vector))
        )
        return min(turns, default=("",))[-1] or None

    def _rank(self, queue: str) -> tuple[int, float]:
        found = self._ranks.get(queue)
        if found is None:
            borrows = self._queues.borrows(queue, self._heaps[queue][0][-1].shape.vector)
            found = self._ranks[queue] = (2 - borrows, -self._queues.share(queue))
        return found

    def _place(self, standing: Standing) -> Place | None:
        """None if it may give no more."""
        if standing.cost() is None:
            return None
        return (*standing.softest, -standing.spare, standing.job.key, standing)

    def _pod(self, standing: Standing, shape: Shape, protected: bool) -> Pod | None:
        """The first to leave whose leaving really makes room on its node."""
        nodes = self._nodes
        eligible = nodes.slots(shape, Room.COMING)
        for pod in leave_order(standing.bound.values()):
            n = nodes.index(pod.node)
            if n is None or (pod.protected and not protected):
                continue
            if eligible.would_fit(n, standing.shape.vector) and not self._too_young(pod, standing):
                return pod
        return None
