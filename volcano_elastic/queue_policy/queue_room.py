"""Counts the room of each queue while a plan is made: its bounds, its rights, and what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from volcano_elastic.api.queue_policy import ForOtherQueues
from volcano_elastic.cluster_state.cluster_state import ClusterState
from volcano_elastic.cluster_state.fit import UNLIMITED, Vector
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.journal import Journal

_NOTHING: Mapping[str, Sequence[int]] = {}


class Full(NamedTuple):
    """A queue with too little room for a claim."""

    queue: str
    """The claim's own, or an ancestor of it."""
    dimensions: tuple[int, ...]
    """Those in which it has too little."""

    def eased(self, vector: Sequence[int]) -> bool:
        """Return whether such a pod that leaves the queue makes some of the room."""
        return any(vector[i] > 0 for i in self.dimensions)


class Limit(NamedTuple):
    """The number of times that a queue may grow, and the bound that ends it there."""

    times: int
    reason: Reason


class QueueRoom:
    """Room in the queues while a plan is made."""

    def __init__(self, cluster: ClusterState, journal: Journal) -> None:
        self.tree, self._journal = cluster.tree, journal
        self.used = {name: list(held) for name, held in cluster.held.items()}
        """Amounts held, children's included."""
        self._caps, self._deserved = cluster.bounds
        self._idle: list[int] = []
        self._coming: list[int] = []
        self.grown: list[str] = []
        """Queues that have come to hold more, one after the other."""
        self.uses = 0
        """How often what queues hold has changed."""

    def use(self, name: str, vector: Sequence[int], times: int = 1) -> None:
        """Count pods that come, or leave if `times` is negative."""
        self._use(name, tuple(vector), times)
        self._journal.note(self._use, name, tuple(vector), -times)

    def _use(self, name: str, vector: Vector, times: int) -> None:
        for queue in self.tree.chains.get(name, ()):
            used = self.used[queue]
            for i, amount in enumerate(vector):
                if amount:
                    used[i] += amount * times
        self.uses += 1
        if times > 0:
            self.grown += self.tree.chains.get(name, ())

    def full(
        self, name: str, vector: Sequence[int], leaving: Mapping[str, Sequence[int]] = _NOTHING
    ) -> Full | None:
        """The first of the queue and its ancestors whose room is too small for `vector` more;
        `leaving`: what goes before, by queue, children's included."""
        for queue in self.tree.chains.get(name, ()):
            used, caps = self.used[queue], self._caps[queue]
            less = leaving.get(queue, self.tree.zero)
            short = tuple(
                i
                for i, amount in enumerate(vector)
                if amount > 0 and used[i] + amount - less[i] > caps[i]
            )
            if short:
                return Full(queue, short)
        return None

    def fits_often(self, name: str, vector: Sequence[int]) -> int:
        """Return how many times `vector` fits into the queue's room."""
        often = UNLIMITED
        for queue in self.tree.chains.get(name, ()):
            used, caps = self.used[queue], self._caps[queue]
            for i, amount in enumerate(vector):
                if amount > 0:
                    often = min(often, (caps[i] - used[i]) // amount)
        return max(0, often)

    def beyond_capability(self, name: str) -> tuple[int, ...]:
        """Return the dimensions in which the queue holds more than its own capability states."""
        capability = self.tree.queues[name].capability
        if not capability:
            return ()
        used = self.used.get(name, self.tree.zero)
        named = enumerate(self.tree.names)
        return tuple(i for i, n in named if n in capability and used[i] > capability[n])

    # Rights

    def beyond_deserved(self, name: str, vector: Sequence[int]) -> bool:
        """Return whether `vector` more would be borrowed: anything, where nothing is deserved."""
        deserved = self._deserved.get(name)
        if deserved is None:
            return True
        used, listed = self.used[name], False
        for i, amount in enumerate(vector):
            if amount > 0 and deserved[i] >= 0:
                if used[i] + amount > deserved[i]:
                    return True
                listed = True
        return not listed

    def share(self, name: str) -> float:
        """The largest used / deserved of the queue's listed resources; 0 where none is listed."""
        deserved = self._deserved.get(name, ())
        used = self.used.get(name, ())
        shares = [used[i] / amount for i, amount in enumerate(deserved) if amount > 0]
        return max(shares, default=0.0)

    def entitled(self, name: str) -> bool:
        """Return whether the queue has a right to anything, else all of it is borrowed."""
        deserved = self._deserved.get(name, ())
        return any(amount > 0 for amount in deserved) or any(self.tree.guarantees.get(name, ()))

    def borrows(self, name: str, vector: Sequence[int]) -> bool:
        """Return whether the queue holds `vector` beyond both its deserved and its guarantee."""
        deserved, guarantee = self._deserved.get(name), self.tree.guarantees.get(name)
        if deserved is None or guarantee is None:
            return True
        used = self.used[name]
        return all(
            used[i] - amount >= max(deserved[i], guarantee[i])
            for i, amount in enumerate(vector)
            if amount > 0 and (deserved[i] >= 0 or guarantee[i] > 0)
        )

    def may_take(self, victim_queue: str, vector: Sequence[int]) -> bool:
        """Return whether a claim of another queue may have a pod of `victim_queue` removed."""
        policy = self.tree.policies.get(victim_queue)
        if policy is None or policy.shrink.for_other_queues is ForOtherQueues.ANY:
            return True
        return self.borrows(victim_queue, vector)

    # Growth

    def open_growth(self, idle: Sequence[int], coming: Sequence[int]) -> None:
        """Amounts that are free on all nodes, now and once the leavers are gone."""
        self._idle, self._coming = list(idle), list(coming)

    def may_grow(self, name: str, vector: Sequence[int]) -> Limit:
        """Return how many times the queue may take `vector` more."""
        often, why = self.fits_often(name, vector), Reason.QUEUE_FULL
        kept = self._headroom(name)
        if kept is not None:
            i, amount = kept
            if vector[i] > 0:
                room = [self._caps[q][i] - self.used[q][i] for q in self.tree.chains[name]]
                most = max(0, min(self._idle[i], *room) - amount) // vector[i]
                if most < often:
                    often, why = most, Reason.HEADROOM_KEPT
        if self.tree.any_guarantee:
            owed = self._owed(self.tree.children.get(None, ()), name)
            for i, amount in enumerate(vector):
                if amount > 0 and owed[i] > 0:
                    most = max(0, self._coming[i] - owed[i]) // amount
                    if most < often:
                        often, why = most, Reason.GUARANTEED_TO_OTHERS
        return Limit(often, why)

    def grow(self, name: str, vector: Sequence[int], times: int) -> None:
        """Count `times` pods more of `vector` as growth, which headroom and guarantees limit."""
        self.use(name, vector, times)
        for i, amount in enumerate(vector if self._idle else ()):
            self._idle[i] -= amount * times
            self._coming[i] -= amount * times

    def _headroom(self, name: str) -> tuple[int, int] | None:
        """Dimension and milli-units that growth leaves idle."""
        policy, i = self.tree.policies.get(name), self.tree.dimension.get(name)
        if policy is None or i is None:
            return None
        headroom = policy.headroom
        if headroom.percent is not None:
            may_hold = min(self._caps[name][i], self.tree.everything[i])
            return i, int(may_hold * headroom.percent / 100)
        return (i, headroom.amount) if headroom.amount else None

    def _owed(self, queues: Iterable[str], asking: str) -> list[int]:
        """Return what guarantees of these queues but the asking one's still lack, by dimension."""
        total = list(self.tree.zero)
        for queue in queues:
            owed = self._owed(self.tree.children.get(queue, ()), asking)
            if queue == asking:
                # Its guarantee is the asking queue's own, and so is that of its ancestors.
                continue
            if queue not in self.tree.chains.get(asking, ()):
                used, guarantee = self.used[queue], self.tree.guarantees[queue]
                each = zip(guarantee, used, owed, strict=True)
                owed = [max(mine - have, lower) for mine, have, lower in each]
            total = [a + b for a, b in zip(total, owed, strict=True)]
        return total
