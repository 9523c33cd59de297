"""All queues, and what follows from them, their policies and the nodes alone.

Under the capacity plugin a queue may hold its realCapability, and so must each of its ancestors:

  realCapability = min(capability, or else the parent's,
                       realCapability of the parent - guarantees of its children + own guarantee)

with all nodes in the root's place. The policy's borrowing limit comes on top, for minimums too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.cluster_state.fit import UNLIMITED
from volcano_elastic.snapshot.snapshot import Queue, Resources


class QueueBounds(NamedTuple):
    """Amounts by queue and dimension."""

    caps: Mapping[str, Sequence[int]]
    """The most that it may hold."""
    deserved: Mapping[str, Sequence[int]]
    """Amounts that it has a right to; negative where it states nothing."""


class QueueTree:
    """Queues by name, with their ancestors, guarantees and bounds."""

    def __init__(
        self,
        queues: Iterable[Queue],
        names: Sequence[str],
        everything: Sequence[int],
        policies: Mapping[str, QueuePolicy],
    ) -> None:
        """`everything`: what all nodes offer, in the order of `names`."""
        self.everything, self.names, self.policies = list(everything), names, policies
        self.queues = {queue.name: queue for queue in sorted(queues, key=lambda q: q.name)}
        self.resources = {
            name: (policies.get(name) or QueuePolicy(queue=name)).resource for name in self.queues
        }
        """Resource of each queue's policy."""
        self.dimension = {
            name: names.index(resource) if resource in names else None
            for name, resource in self.resources.items()
        }
        """Its dimension; None if nothing names it."""
        self.zero = [0] * len(names)
        self.chains = {name: self._chain(name) for name in self.queues}
        """Each queue and its ancestors, as far as they exist."""
        self.problems = {
            name: found for name in self.queues if (found := self._misplaced(name)) is not None
        }
        """The fault of a queue's parents, by its name."""
        self.children: dict[str | None, list[str]] = {}
        for name, chain in self.chains.items():
            self.children.setdefault(chain[1] if len(chain) > 1 else None, []).append(name)
        self.guarantees = {q.name: self._amounts(q.guarantee, 0) for q in self.queues.values()}
        self.deserved = {q.name: self._amounts(q.deserved, -1) for q in self.queues.values()}
        self.any_guarantee = any(any(held) for held in self.guarantees.values())
        headroom = [policy.headroom for name, policy in policies.items() if name in self.queues]
        self.keeps_free = self.any_guarantee or any(
            one.amount or one.percent is not None for one in headroom
        )
        """True if growth leaves room for anybody."""
        self.caps: dict[str, list[int]] = {}
        for name in sorted(self.queues, key=lambda name: (len(self.chains[name]), name)):
            self.caps[name] = self._real_capability(name)
        for name in self.queues:
            self.limit_borrowing(name, self.caps, self.deserved)

    def _chain(self, name: str) -> tuple[str, ...]:
        found: list[str] = []
        at: str | None = name
        while at in self.queues:
            found.append(at)
            # Where the parents run in a ring, which nothing forbids, nobody is above the others, so
            # each of them counts as right below the root.
            at = None if self._ring(at) else self.queues[at].parent
        return tuple(found)

    def _ring(self, name: str) -> list[str]:
        """The queue, its parent and so on, if that comes back to the queue; else nothing."""
        found, at = [name], self.queues[name].parent
        while at in self.queues and at not in found:
            found.append(at)
            at = self.queues[at].parent
        return found if at == name else []

    def _misplaced(self, name: str) -> str | None:
        parent, ring = self.queues[name].parent, self._ring(name)
        if ring:
            what = f"its parents run in a ring ({' → '.join([*ring, name])})"
            repair = "set another spec.parent in one of them"
        elif parent is not None and parent not in self.queues:
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
        return [given.get(name, absent) for name in self.names]

    def _real_capability(self, name: str) -> list[int]:
        chain = self.chains[name]
        parent = chain[1] if len(chain) > 1 else None
        above = self.everything if parent is None else self.caps[parent]
        absent = [UNLIMITED] * len(above) if parent is None else above
        own, siblings = self.guarantees[name], self.children[parent]
        held = [sum(column) for column in zip(*map(self.guarantees.get, siblings), strict=True)]
        capability = self.queues[name].capability or {}
        return [
            min(capability.get(resource, absent[i]), above[i] - held[i] + own[i])
            if held[i]
            else capability.get(resource, absent[i])
            for i, resource in enumerate(self.names)
        ]

    def limit_borrowing(
        self, name: str, caps: dict[str, list[int]], deserved: Mapping[str, list[int]]
    ) -> None:
        """Lower the queue's entry in `caps` to what its policy lets it borrow."""
        policy, i = self.policies.get(name), self.dimension[name]
        if policy is None or policy.borrowing_limit is None or i is None:
            return
        right = max(deserved[name][i], self.guarantees[name][i], 0)
        caps[name] = list(caps[name])
        caps[name][i] = min(caps[name][i], right + policy.borrowing_limit)

    def closed(self, name: str) -> str | None:
        """Why nothing can start in the queue, or None."""
        if not self.queues or not name:
            return None
        queue = self.queues.get(name)
        if queue is None:
            return f"queue {name} does not exist"
        return None if queue.open else f"queue {name} is closed"

    def within(self, name: str, ancestor: str) -> bool:
        """Return whether pods of queue `name` count in `ancestor`, or the queue itself."""
        return ancestor in self.chains.get(name, (name,))


def bounds_by_weight(tree: QueueTree, demands: Mapping[str, Sequence[int]]) -> QueueBounds:
    """Return the bounds under the proportion plugin, which knows no tree.

    Queues without demand take no part. A queue's right is its share by weight alone; what it may
    hold is what `divide` gives it of its demand: what it holds and would take more.
    """
    taking = [name for name in tree.queues if any(demands.get(name, ()))]
    weights = {name: tree.queues[name].weight for name in taking}
    total = sum(weights.values())
    given = divide(
        tree.everything,
        weights=weights,
        demands={name: demands[name] for name in taking},
        caps={name: tree.caps[name] for name in taking},
        floors={name: tree.guarantees[name] for name in taking},
    )
    by_weight = {
        name: [amount * weights[name] // total if amount else -1 for amount in tree.everything]
        for name in taking
    }
    deserved, caps = tree.deserved | by_weight, dict(tree.caps)
    for name in taking:
        caps[name] = [
            min(cap, mine) if amount else cap
            for cap, mine, amount in zip(tree.caps[name], given[name], tree.everything, strict=True)
        ]
        tree.limit_borrowing(name, caps, deserved)
    return QueueBounds(caps, deserved)


def divide(
    total: Sequence[int],
    *,
    weights: Mapping[str, int],
    demands: Mapping[str, Sequence[int]],
    caps: Mapping[str, Sequence[int]],
    floors: Mapping[str, Sequence[int]],
) -> dict[str, list[int]]:
    """Return what each queue deserves of `total` under the proportion plugin, by dimension.

    Volcano's rounds, each dimension for itself: what remains is handed out by weight among the
    queues that want more, each gets no more than the smaller of its demand and its cap and no less
    than its floor, until nobody wants more or nothing remains. Where these rounds come to rest,
    everybody has max(floor, min(goal, weight × level)) with the largest level that `total` allows.
    """
    given: dict[str, list[int]] = {name: [0] * len(total) for name in weights}
    for i, everything in enumerate(total):
        goals = {
            name: max(min(demands[name][i], caps[name][i]), floors[name][i]) for name in weights
        }
        shares = goals
        if sum(goals.values()) > everything:
            low, high = 0.0, max(goal / weights[name] for name, goal in goals.items())
            shares = {name: floors[name][i] for name in goals}
            for _ in range(60):
                middle = (low + high) / 2
                tried = {
                    name: max(floors[name][i], min(goal, int(weights[name] * middle)))
                    for name, goal in goals.items()
                }
                if sum(tried.values()) <= everything:
                    low, shares = middle, tried
                else:
                    high = middle
        for name, amount in shares.items():
            given[name][i] = amount
    return given
