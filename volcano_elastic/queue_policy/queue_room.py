"""What each queue holds, may hold, and has a right to.

Under the capacity plugin a queue may hold its realCapability, and so must each of its ancestors:

  realCapability = min(capability, or else the parent's,
                       realCapability of the parent - guarantees of its children + own guarantee)

with all nodes in the root's place. Under the proportion plugin, which knows no tree, it may also
hold no more than what `proportion.divide` gives it. The policy's borrowing limit comes on top, for
minimums too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from volcano_elastic.api.queue_policy import ForOtherQueues, QueuePolicy
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import UNLIMITED
from volcano_elastic.queue_policy.proportion import divide
from volcano_elastic.queue_policy.snapshot import Queue, Resources

_NOTHING: Mapping[str, Sequence[int]] = {}


@dataclass(frozen=True, slots=True)
class Full:
    """A queue with too little room for a claim."""

    queue: str
    """The claim's own, or an ancestor of it."""
    dimensions: tuple[int, ...]
    """Those in which it has too little."""

    def eased(self, vector: Sequence[int]) -> bool:
        """Whether such a pod that leaves the queue makes some of the room."""
        return any(vector[i] > 0 for i in self.dimensions)


class QueueRoom:
    def __init__(
        self,
        queues: Iterable[Queue],
        names: Sequence[str],
        everything: Sequence[int],
        policies: Mapping[str, QueuePolicy],
    ) -> None:
        """`everything`: what all nodes offer, in the order of `names`."""
        self._policies = policies
        self._queues = {queue.name: queue for queue in sorted(queues, key=lambda q: q.name)}
        self._lenient = not self._queues
        self._names = names
        self._zero = [0] * len(names)
        self._held: dict[str, list[int]] = {name: list(self._zero) for name in self._queues}
        self.used: dict[str, list[int]] = {}
        """Children's included."""
        self._chains = {name: self._chain(name) for name in self._queues}
        self.problems = {
            name: found for name in self._queues if (found := self._misplaced(name)) is not None
        }
        """What is wrong with a queue's parents, by its name."""
        self._children: dict[str | None, list[str]] = {}
        for name, chain in self._chains.items():
            self._children.setdefault(chain[1] if len(chain) > 1 else None, []).append(name)
        self.guarantees = {q.name: self._amounts(q.guarantee, 0) for q in self._queues.values()}
        self._stated = {q.name: self._amounts(q.deserved, -1) for q in self._queues.values()}
        self._guaranteed = {
            parent: [sum(column) for column in zip(*map(self.guarantees.get, names), strict=True)]
            for parent, names in self._children.items()
        }
        self._any_guarantee = any(any(held) for held in self.guarantees.values())
        self._idle: list[int] = []
        self._spare: list[int] = []
        self.offer(everything)

    def offer(self, everything: Sequence[int]) -> None:
        """What all nodes offer is another amount now."""
        self._everything = list(everything)
        self._caps: dict[str, list[int]] = {}
        for name in sorted(self._queues, key=lambda name: (len(self._chains[name]), name)):
            self._caps[name] = self._real_capability(name)
        self._deserve(self._stated)
        for name in self._queues:
            self._limit_borrowing(name)
        self._limits = {**self._caps}
        self.begin()

    def _deserve(self, deserved: Mapping[str, list[int]]) -> None:
        self._deserved = {**deserved}
        self._listed = {
            name: [(i, amount) for i, amount in enumerate(amounts) if amount > 0]
            for name, amounts in deserved.items()
        }

    def hold(self, name: str, vector: Sequence[int], times: int) -> None:
        """`times` more such pods are there, for the next `begin`."""
        for queue in self._chains.get(name, ()):
            held = self._held[queue]
            for i, amount in enumerate(vector):
                if amount:
                    held[i] += amount * times

    def begin(self) -> None:
        """Forget all that the last plan did."""
        self.used = {name: list(held) for name, held in self._held.items()}
        self._caps = {**self._limits}
        self._idle, self._spare = [], []

    def _chain(self, name: str) -> tuple[str, ...]:
        """The queue and its ancestors that exist."""
        found: list[str] = []
        at: str | None = name
        while at in self._queues:
            found.append(at)
            at = self._parent(at)
        return tuple(found)

    def _parent(self, name: str) -> str | None:
        """None where the parents run in a ring, which nothing forbids: nobody is above the others
        there, so each of them counts as right below the root."""
        return None if self._ring(name) else self._queues[name].parent

    def _ring(self, name: str) -> list[str]:
        """The queue, its parent and so on, if that comes back to the queue; else nothing."""
        found, at = [name], self._queues[name].parent
        while at in self._queues and at not in found:
            found.append(at)
            at = self._queues[at].parent
        return found if at == name else []

    def _misplaced(self, name: str) -> str | None:
        parent, ring = self._queues[name].parent, self._ring(name)
        if ring:
            what = f"its parents run in a ring ({' → '.join([*ring, name])})"
            repair = "set another spec.parent in one of them"
        elif parent is not None and parent not in self._queues:
            what = f"its parent {parent} does not exist"
            repair = "create that queue, or set another spec.parent"
        else:
            return None
        # Volcano's capacity plugin gives up on the whole tree.
        return (
            f"{what}, so that it counts as right below the root here, and with enableHierarchy "
            f"Volcano starts nothing in any queue: {repair}"
        )

    def _amounts(self, resources: Resources | None, absent: int) -> list[int]:
        given = resources or {}
        return [given.get(name, absent) for name in self._names]

    def _real_capability(self, name: str) -> list[int]:
        chain = self._chains[name]
        parent = chain[1] if len(chain) > 1 else None
        above = self._everything if parent is None else self._caps[parent]
        absent = [UNLIMITED] * len(above) if parent is None else above
        own, held = self.guarantees[name], self._guaranteed[parent]
        capability = self._queues[name].capability or {}
        return [
            min(capability.get(resource, absent[i]), above[i] - held[i] + own[i])
            if held[i]
            else capability.get(resource, absent[i])
            for i, resource in enumerate(self._names)
        ]

    def _limit_borrowing(self, name: str) -> None:
        policy = self._policies.get(name)
        if policy is None or policy.borrowing_limit is None or policy.resource not in self._names:
            return
        i = self._names.index(policy.resource)
        right = max(self._deserved[name][i], self.guarantees[name][i], 0)
        caps = list(self._caps[name])
        caps[i] = min(caps[i], right + policy.borrowing_limit)
        self._caps[name] = caps

    def share_by_weight(self, wishes: Mapping[str, Sequence[int]]) -> None:
        """The proportion plugin: `wishes` is what each queue holds and would take more.

        Queues that want nothing take no part. A queue's right is its share by weight alone;
        what it may hold is what the division gives it when every wish is heard.
        """
        taking = [name for name in self._queues if any(wishes.get(name, ()))]
        weights = {name: self._queues[name].weight for name in taking}
        total = sum(weights.values())
        given = divide(
            self._everything,
            weights=weights,
            wishes={name: wishes[name] for name in taking},
            caps={name: self._caps[name] for name in taking},
            floors={name: self.guarantees[name] for name in taking},
        )
        by_weight = {
            name: [amount * weights[name] // total if amount else -1 for amount in self._everything]
            for name in taking
        }
        self._deserve(self._stated | by_weight)
        for name in taking:
            self._caps[name] = [
                min(cap, mine) if amount else cap
                for cap, mine, amount in zip(
                    self._caps[name], given[name], self._everything, strict=True
                )
            ]
            self._limit_borrowing(name)

    def closed(self, name: str) -> str | None:
        """Why nothing can start in the queue, or None."""
        if self._lenient:
            return None
        queue = self._queues.get(name)
        if queue is None:
            return f"queue {name} does not exist"
        return None if queue.open else f"queue {name} is closed"

    def use(self, name: str, vector: Sequence[int], times: int = 1) -> None:
        for queue in self._chains.get(name, ()):
            used = self.used[queue]
            for i, amount in enumerate(vector):
                if amount:
                    used[i] += amount * times

    def full(
        self, name: str, vector: Sequence[int], leaving: Mapping[str, Sequence[int]] = _NOTHING
    ) -> Full | None:
        """The first of the queue and its ancestors whose room is too small for `vector` more;
        `leaving`: what goes before, by queue, as `sums` says."""
        for queue in self._chains.get(name, ()):
            used, caps, less = self.used[queue], self._caps[queue], leaving.get(queue, self._zero)
            short = tuple(
                i
                for i, amount in enumerate(vector)
                if amount > 0 and used[i] + amount - less[i] > caps[i]
            )
            if short:
                return Full(queue, short)
        return None

    def sums(self, amounts: Iterable[tuple[str, Sequence[int], int]]) -> dict[str, list[int]]:
        """By queue, what so many pods of a size in a queue come to, children's included."""
        found: dict[str, list[int]] = {}
        for name, vector, times in amounts:
            for queue in self._chains.get(name, ()):
                total = found.setdefault(queue, list(self._zero))
                for i, amount in enumerate(vector):
                    total[i] += amount * times
        return found

    def fits_often(self, name: str, vector: Sequence[int]) -> int:
        """How many times `vector` fits into the queue's room."""
        often = UNLIMITED
        for queue in self._chains.get(name, ()):
            used, caps = self.used[queue], self._caps[queue]
            for i, amount in enumerate(vector):
                if amount > 0:
                    often = min(often, (caps[i] - used[i]) // amount)
        return max(0, often)

    def chain(self, name: str) -> tuple[str, ...]:
        """The queue and its ancestors, as far as they exist."""
        return self._chains.get(name, ())

    def within(self, name: str, ancestor: str) -> bool:
        """Whether pods of queue `name` count in `ancestor`, which may be the queue itself."""
        return ancestor in self._chains.get(name, (name,))

    def beyond_deserved(self, name: str, vector: Sequence[int]) -> bool:
        """Whether `vector` more would be borrowed; a queue without deserved borrows everything."""
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
        listed = self._listed.get(name)
        if not listed:
            return 0.0
        used = self.used[name]
        return max(used[i] / amount for i, amount in listed)

    def entitled(self, name: str) -> bool:
        """Whether the queue has a right to anything: else its share and what it borrows are always
        the same."""
        return bool(self._listed.get(name)) or any(self.guarantees.get(name, ()))

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

    # Growth

    @property
    def keeps_free(self) -> bool:
        """Whether growth must leave something: then `open_growth` must have been told of it."""
        return self._any_guarantee or any(map(self._headroom, self._policies))

    def open_growth(self, idle: Sequence[int], coming: Sequence[int]) -> None:
        """What is free on all nodes, now and once the leavers are gone."""
        self._idle, self._spare = list(idle), list(coming)

    def may_grow(self, name: str, vector: Sequence[int]) -> tuple[int, Reason]:
        """How many times the queue may take `vector` more, and what ends it there."""
        often, why = self.fits_often(name, vector), Reason.QUEUE_FULL
        kept = self._headroom(name)
        if kept is not None:
            i, amount = kept
            if vector[i] > 0:
                room = min(self._idle[i], *(self._left(queue, i) for queue in self._chains[name]))
                most = max(0, room - amount) // vector[i]
                if most < often:
                    often, why = most, Reason.HEADROOM_KEPT
        if self._any_guarantee:
            owed = self._owed_but(name)
            for i, amount in enumerate(vector):
                if amount > 0 and owed[i] > 0:
                    most = max(0, self._spare[i] - owed[i]) // amount
                    if most < often:
                        often, why = most, Reason.GUARANTEED_TO_OTHERS
        return often, why

    def grow(self, name: str, vector: Sequence[int], times: int) -> None:
        self.use(name, vector, times)
        for i, amount in enumerate(vector if self._idle else ()):
            self._idle[i] -= amount * times
            self._spare[i] -= amount * times

    def _left(self, name: str, i: int) -> int:
        return self._caps[name][i] - self.used[name][i]

    def _headroom(self, name: str) -> tuple[int, int] | None:
        """(dimension, milli-units) that growth leaves idle."""
        policy = self._policies.get(name)
        if policy is None or policy.resource not in self._names or name not in self._chains:
            return None
        i, headroom = self._names.index(policy.resource), policy.headroom
        if headroom.percent is not None:
            may_hold = min(self._caps[name][i], self._everything[i])
            return i, int(may_hold * headroom.percent / 100)
        return (i, headroom.amount) if headroom.amount else None

    def _owed_but(self, name: str) -> list[int]:
        """What guarantees of all other queues still lack, by dimension."""
        chain = set(self._chains.get(name, ()))

        def owed(queue: str) -> list[int]:
            below = of_children(queue)
            if queue in chain:
                # Its guarantee is the asking queue's too.
                return list(self._zero) if queue == name else below
            used, guarantee = self.used[queue], self.guarantees[queue]
            return [
                max(mine - have, lower)
                for mine, have, lower in zip(guarantee, used, below, strict=True)
            ]

        def of_children(parent: str | None) -> list[int]:
            total = list(self._zero)
            for child in self._children.get(parent, ()):
                for i, amount in enumerate(owed(child)):
                    total[i] += amount
            return total

        return of_children(None)

    # Figures

    def free(self, name: str, i: int, idle: int) -> int:
        """Of `idle`, what the queue may use of dimension i."""
        if self.closed(name) is not None:
            return 0
        for queue in self._chains[name]:
            idle = min(idle, self._left(queue, i))
        return max(0, idle)

    def borrowed(self, name: str, i: int) -> int:
        """What the queue holds of dimension i beyond its deserved and its guarantee."""
        right = max(self._deserved[name][i], self.guarantees[name][i])
        return max(0, self.used[name][i] - right) if right > 0 else 0
