"""Surplus pods that may be asked to leave, and the cheapest sets of them that make room."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import add

from volcano_elastic.queue_policy.fit import Shape, Vector
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.victim import Key, Option, Victim

ENDLESS = 1 << 30


class Surplus:
    """All bound pods that may be asked to leave, and the search among them."""

    def __init__(
        self,
        nodes: NodeRoom,
        queues: QueueRoom,
        standings: Mapping[str, Standing],
        now: datetime,
    ) -> None:
        self.nodes = nodes
        self._queues, self._standings, self._now = queues, standings, now
        self.protected_until: datetime | None = None
        """When the first pod that is still too young to be taken may be."""
        self.on_node: dict[int, list[Victim]] = {}
        self.nodes_of: dict[str, list[int]] = {}
        """Of each job's surplus, by its key."""
        self.by_queue: dict[str, list[Victim]] = {}
        self._gathered = False
        self._options: dict[tuple[Shape, str, str | None, bool, int], Options] = {}

    def gather(self, chosen: Iterable[Victim] = ()) -> None:
        """Only when a claim needs it: most of the time nobody has to leave.

        `chosen`: who leaves by an attempt that may still be undone, and then is surplus again.
        """
        if self._gathered:
            return
        self._gathered = True
        givers = {victim.standing.job.key for victim in chosen}
        nodes, zero = self.nodes, (0,) * len(self.nodes.dimensions.names)
        sums: dict[int, Vector] = {}
        for standing in self._standings.values():
            vector, key = standing.shape.vector, standing.job.key
            gives = standing.size - standing.unit >= standing.job.min or key in givers
            if not gives or not standing.movable:
                continue
            protects = bool(standing.policy.shrink.protect)
            for pod in standing.bound.values():
                n = nodes.index(pod.node)
                if pod.index == 0 or n is None or (protects and self.too_young(pod, standing)):
                    continue
                victim = Victim(pod, standing, n, vector)
                self.on_node.setdefault(n, []).append(victim)
                self.by_queue.setdefault(standing.job.queue, []).append(victim)
                self.nodes_of.setdefault(key, []).append(n)
                sums[n] = tuple(map(add, sums.get(n, zero), vector))
        for victim in chosen:
            # Their room counts as coming already.
            self.on_node.setdefault(victim.node, []).append(victim)
            self.by_queue.setdefault(victim.standing.job.queue, []).append(victim)
            self.nodes_of.setdefault(victim.standing.job.key, []).append(victim.node)
        for victims in self.on_node.values():
            # Per job, who costs least first: of equal pods only that one need be looked at.
            victims.sort(
                key=lambda v: (
                    v.standing.job.key,
                    v.pod.protected,
                    v.pod.running,
                    -v.pod.index,
                    v.pod.key,
                )
            )
        nodes.expect(sums)

    def too_young(self, pod: Pod, standing: Standing) -> bool:
        """As Volcano's cdp plugin, but from creation: `shrink.protectSeconds`."""
        protect = standing.policy.shrink.protect
        if not protect or pod.created is None:
            return False
        until = pod.created + protect
        if until <= self._now:
            return False
        self.protected_until = min(until, self.protected_until or until)
        return True

    def forget(self) -> None:
        """What could leave has changed in another way than by picking: gather it again."""
        self.on_node, self.nodes_of, self.by_queue = {}, {}, {}
        self._gathered = False
        self.forget_options()

    def forget_options(self) -> None:
        """Some options are better than they were, which no heap would notice."""
        self._options.clear()

    def best(
        self, shape: Shape, queue: str, own: str | None, protected: bool, need: int
    ) -> Option | None:
        """The cheapest option for a slot, where `need` are wanted."""
        found = None
        # One that frees more than the claim can use is dearer than it looks: then all are compared
        # by what is of use to it. Most of the time the first is the answer, whatever the need.
        for useful in (ENDLESS, need):
            key = (shape, queue, own, protected, useful)
            options = self._options.get(key)
            if options is None:
                options = self._options[key] = Options(self, *key)
            found = options.best()
            if found is None or found.slots <= need:
                break
        return found

    def from_full_queue(
        self,
        full: str,
        wanted: list[int],
        queue: str,
        shape: Shape,
        need: int,
        protected: bool,
    ) -> Option | None:
        """Queue `full`, which is the claim's own or an ancestor of it, has no room: only pods of
        its own make some there, in the dimensions `wanted`."""
        victims = [
            victim
            for member in sorted(self.by_queue)
            if self._queues.within(member, full)
            for victim in self.by_queue[member]
            if any(victim.vector[i] > 0 for i in wanted) and self._usable(victim, queue, protected)
        ]
        found: list[Option] = []
        if need:
            for n in sorted({v.node for v in victims}):
                option = self.option(n, shape, queue, None, protected, need, within=full)
                if option is not None:
                    found.append(option)
        if not found:
            found = [Option(self._key((v,), queue, 1), (v,)) for v in victims]
        return min(found, key=lambda option: option.key, default=None)

    def _usable(self, victim: Victim, queue: str, protected: bool) -> bool:
        return (
            (protected or not victim.pod.protected)
            and victim.pod.key in victim.standing.bound
            and self._gives(victim.standing, queue)
        )

    def _gives(self, standing: Standing, queue: str, with_: Iterable[Victim] = ()) -> bool:
        """Whether the job may lose one pod more for a claim of `queue`, besides those `with_`."""
        cost, owner = standing.cost(), standing.job.queue
        if cost is None or owner == queue:
            return cost is not None
        # With the rest of its unit; what leaves anyway, nobody has to be asked for.
        given = [amount * cost for amount in standing.shape.vector]
        for other in with_:
            if other.standing.job.queue == owner:
                given = list(map(add, given, other.vector))
        return not cost or self._queues.may_take(owner, given)

    def option(
        self,
        n: int,
        shape: Shape,
        queue: str,
        own: str | None,
        protected: bool,
        need: int,
        within: str | None = None,
    ) -> Option | None:
        """The best smallest set of node n's surplus that makes room for one more such pod."""
        nodes = self.nodes
        coming = [a - b for a, b in zip(nodes.bases[Room.COMING][n], nodes.taken[n], strict=True)]
        slots = min((coming[i] // amount for i, amount in shape.needs), default=0)
        target = max(slots, 0) + 1
        lack = {i: target * amount - coming[i] for i, amount in shape.needs}
        lack = {i: amount for i, amount in lack.items() if amount > 0}
        allowed_jobs: dict[str, bool] = {}
        candidates: list[Victim] = []
        for victim in self.on_node.get(n, ()):
            standing = victim.standing
            key = standing.job.key
            allowed = allowed_jobs.get(key)
            if allowed is None:
                allowed = allowed_jobs[key] = (
                    (own is None or key == own)
                    and (within is None or self._queues.within(standing.job.queue, within))
                    and self._gives(standing, queue)
                )
            if allowed and (protected or not victim.pod.protected):
                candidates += [victim] if victim.pod.key in standing.bound else []
        if not candidates:
            return None

        def gain(victims: Iterable[Victim]) -> int:
            have = list(coming)
            for victim in victims:
                for i, amount in enumerate(victim.vector):
                    have[i] += amount
            after = min((have[i] // amount for i, amount in shape.needs), default=0)
            return max(1, min(need, after - max(slots, 0)))

        def offer(*victims: Victim) -> Option:
            slots_won = gain(victims)
            return Option(self._key(victims, queue, slots_won), victims, slots_won)

        # Of a job's pods, which are alike, who costs least goes first and is last in its list.
        of_job: dict[str, list[Victim]] = {}
        for victim in reversed(candidates):
            of_job.setdefault(victim.standing.job.key, []).append(victim)
        single = [
            offer(alike[-1])
            for alike in of_job.values()
            if all(alike[-1].vector[i] >= amount for i, amount in lack.items())
        ]
        if single:
            return min(single, key=lambda option: option.key)
        keys = {job: self._key((alike[-1],), queue, 1) for job, alike in of_job.items()}
        chosen: list[Victim] = []
        while any(amount > 0 for amount in lack.values()):
            helps = {
                vector: sum(min(vector[i], a) / a for i, a in lack.items() if a > 0)
                for vector in {alike[-1].vector for alike in of_job.values()}
            }
            job = min(of_job, key=lambda j: (-helps[of_job[j][-1].vector], keys[j]), default="")
            if not job or not helps[of_job[job][-1].vector]:
                return None
            best = of_job[job].pop()
            if not (_affordable(best, chosen) and self._gives(best.standing, queue, chosen)):
                del of_job[job]
                continue
            chosen.append(best)
            if of_job[job]:
                keys[job] = self._key((of_job[job][-1],), queue, 1)
            else:
                del of_job[job]
            lack = {i: amount - best.vector[i] for i, amount in lack.items()}
        for victim in list(chosen):
            if all(amount + victim.vector[i] <= 0 for i, amount in lack.items()):
                chosen.remove(victim)
                lack = {i: amount + victim.vector[i] for i, amount in lack.items()}
        return offer(*chosen)

    def _key(self, victims: tuple[Victim, ...], queue: str, slots: int) -> Key:
        cost = _cost(victims)
        queues = self._queues
        ranks = [
            0
            if v.standing.job.queue == queue
            else 2 - queues.borrows(v.standing.job.queue, v.vector)
            for v in victims
        ]
        share = max(
            (queues.share(v.standing.job.queue) for v in victims if v.standing.job.queue != queue),
            default=0.0,
        )
        last = min(victims, key=lambda v: (v.standing.spare, v.pod.index))
        return (
            cost / slots,
            cost,
            sum(v.pod.protected for v in victims),
            sum(v.pod.running for v in victims),
            max(ranks),
            -share,
            -last.standing.spare,
            -last.pod.index,
            last.pod.key,
        )


class Options:
    """The cheapest option of every node, best first, for one kind of claim.

    Keys only get worse while nothing on their node changes, so an entry is looked at again when it
    comes to the top; nodes that changed are entered anew.
    """

    def __init__(
        self,
        surplus: Surplus,
        shape: Shape,
        queue: str,
        own: str | None,
        protected: bool,
        need: int,
    ) -> None:
        self._surplus = surplus
        self._asks = (shape, queue, own, protected, need)
        self._eligible = frozenset(surplus.nodes.eligible(shape))
        self._heap: list[tuple[Key, int]] = []
        self._seen = len(surplus.nodes.changes)
        for n in sorted(surplus.on_node):
            self._enter(n)

    def _enter(self, n: int) -> None:
        if n in self._eligible and n in self._surplus.on_node:
            option = self._surplus.option(n, *self._asks)
            if option is not None:
                heapq.heappush(self._heap, (option.key, n))

    def best(self) -> Option | None:
        changes = self._surplus.nodes.changes
        if self._seen < len(changes):
            for n in sorted(set(changes[self._seen :])):
                self._enter(n)
            self._seen = len(changes)
        while self._heap:
            key, n = self._heap[0]
            option = self._surplus.option(n, *self._asks)
            if option is not None and option.key <= key:
                return option
            heapq.heappop(self._heap)
            if option is not None:
                heapq.heappush(self._heap, (option.key, n))
        return None


def _cost(victims: Iterable[Victim]) -> int:
    """Pods that leave in the end if these are picked, whole units counted."""
    total = 0
    left: dict[str, int] = {}
    for victim in victims:
        key, unit = victim.standing.job.key, victim.standing.unit
        credit = left.get(key, victim.standing.credit)
        if credit:
            left[key] = credit - 1
        else:
            total += unit
            left[key] = unit - 1
    return total


def _affordable(victim: Victim, chosen: list[Victim]) -> bool:
    """Whether the victim's job may lose it besides those already chosen."""
    standing = victim.standing
    same = sum(1 for other in chosen if other.standing is standing)
    unit = standing.unit
    units = -(-max(0, same + 1 - standing.credit) // unit)
    return (
        standing.size - units * unit >= standing.job.min
        and standing.held - same - 1 >= standing.job.min
    )
