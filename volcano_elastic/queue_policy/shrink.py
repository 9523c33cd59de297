"""Delete-first: which surplus pods leave so that a claim really fits on real nodes.

A claim is served in steps, each of which may end it:

  1. its queue must be open, and even all surplus together must be enough; otherwise it is blocked;
  2. idle and coming room: nobody leaves;
  3. moves: claims served before, and not started yet, are promised other nodes;
  4. surplus: the cheapest option of all nodes again and again, until it fits: first without
     protected pods, then with them. An option is a smallest set of pods of one node whose leaving
     makes room for one pod more. A job that runs without its worker 0 asks its own surplus first.

Whatever fails leaves no trace.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import add

from volcano_elastic.queue_policy.claims import Claim
from volcano_elastic.queue_policy.fit import Shape, Vector
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.single import Givers, Singles
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.victim import Key, Option, Victim

ENDLESS = 1 << 30


@dataclass(slots=True)
class Attempt:
    """What serving one claim has done so far; enough to undo it."""

    mark: int
    placed: list[tuple[int, Shape]] = field(default_factory=list)
    moved: list[tuple[int, int, Shape]] = field(default_factory=list)
    """(from node, to node, shape)"""
    victims: list[Victim] = field(default_factory=list)
    used: list[list[int]] = field(default_factory=list)
    """What the claim's groups took of its queue's room."""
    idle: bool = True
    """Idle room alone has been enough."""


class Surplus:
    """All bound pods that may be asked to leave, by node, and the search among them."""

    def __init__(
        self,
        nodes: NodeRoom,
        queues: QueueRoom,
        standings: Mapping[str, Standing],
        givers: Givers,
        restless: Collection[Standing],
        now: datetime,
    ) -> None:
        """`restless`: those of `standings` that are not among `givers` since they are not calm."""
        self.nodes = nodes
        self._queues, self._standings, self._now = queues, standings, now
        self._givers, self._restless = givers, restless
        self.protected_until: datetime | None = None
        """When the first pod that is still too young to be taken may be."""
        self.from_idle: set[str] = set()
        """Keys of the claims served by idle room alone."""
        self._gathered = False
        self._singles: Singles | None = None
        self.on_node: dict[int, list[Victim]] = {}
        self._nodes_of: dict[str, list[int]] = {}
        self._by_queue: dict[str, list[Victim]] = {}
        self._promises: dict[int, list[Shape]] = {}
        self._options: dict[tuple[Shape, str, str | None, bool], Options] = {}
        self._promised: Counter[Shape] = Counter()
        self._failed: dict[tuple[object, ...], int] = {}
        self._served = 0

    def _gather(self, chosen: Iterable[Victim] = ()) -> None:
        """Only when a claim needs it: most of the time nobody has to leave.

        `chosen`: who leaves by an attempt that may still be undone, and then is surplus again.
        """
        if self._gathered:
            return
        self._gathered = True
        givers = {victim.standing.job.key for victim in chosen}
        nodes, zero = self.nodes, (0,) * self._width
        sums: dict[int, Vector] = {}
        for standing in self._standings.values():
            vector, key = standing.shape.vector, standing.job.key
            gives = standing.size - standing.unit >= standing.job.min or key in givers
            if not gives or not standing.movable:
                continue
            protects = bool(standing.policy.shrink.protect)
            for pod in standing.bound.values():
                n = nodes.index(pod.node)
                if pod.index == 0 or n is None or (protects and self._too_young(pod, standing)):
                    continue
                victim = Victim(pod, standing, n, vector)
                self.on_node.setdefault(n, []).append(victim)
                self._by_queue.setdefault(standing.job.queue, []).append(victim)
                self._nodes_of.setdefault(key, []).append(n)
                sums[n] = tuple(map(add, sums.get(n, zero), vector))
        for victim in chosen:
            # Their room counts as coming already.
            self.on_node.setdefault(victim.node, []).append(victim)
            self._by_queue.setdefault(victim.standing.job.queue, []).append(victim)
            self._nodes_of.setdefault(victim.standing.job.key, []).append(victim.node)
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

    def _too_young(self, pod: Pod, standing: Standing) -> bool:
        """As Volcano's cdp plugin, but from creation: `shrink.protectSeconds`."""
        protect = standing.policy.shrink.protect
        if not protect or pod.created is None:
            return False
        until = pod.created + protect
        if until <= self._now:
            return False
        self.protected_until = min(until, self.protected_until or until)
        return True

    def forget_failures(self) -> None:
        """Room has come free in another way than by `serve`: try everything again."""
        self._failed.clear()
        self._options.clear()
        self.on_node, self._nodes_of, self._by_queue = {}, {}, {}
        self._gathered, self._singles = False, None

    def serve(self, claim: Claim) -> str | None:
        """Keep room for the claim, asking surplus to leave if need be; else say why it cannot."""
        closed = self._queues.closed(claim.queue)
        if closed is not None:
            return closed
        for shape, count in claim.groups:
            lack = count - self.nodes.slots(shape, Room.COMING).total()
            if lack > 0 and (not claim.may_shrink or not self._may_free(shape, count, lack)):
                return self._too_little("the nodes have too little room for it", claim)
        own = claim.key if claim.own_surplus_first else None
        memory = (claim.queue, claim.groups, own)
        if self._failed.get(memory) == self._served:
            return self._too_little("there is too little room for it", claim)
        if claim.standing is not None:
            claim.standing.promised += claim.workers
        tries = (False, True) if claim.may_shrink else (False,)
        if any(self._attempt(claim, own, protected) for protected in tries):
            self._served += 1
            # A job that was short of its minimum may have surplus again.
            self.nodes.changes.extend(self._nodes_of.get(claim.key, ()))
            return None
        if claim.standing is not None:
            claim.standing.promised -= claim.workers
        # Keys that got worse during the attempt are better again, which no heap would notice.
        self._options.clear()
        self._failed[memory] = self._served
        vector = [sum(s.vector[i] * c for s, c in claim.groups) for i in range(self._width)]
        full = self._queues.full(claim.queue, vector)
        if full is not None:
            return self._too_little(f"queue {full[0]} has too little room for it", claim)
        return self._too_little("there is too little room for it", claim)

    def _may_free(self, shape: Shape, count: int, lack: int) -> bool:
        """Whether all surplus together might make up for what is lacking."""
        if self._single().suit(shape):
            return self._single().pods >= lack
        self._gather()
        return self.nodes.slots(shape, Room.POTENTIAL).total() >= count

    def _holds_more(self, queue: str) -> None:
        if self._singles is not None:
            self._singles.changed(queue)

    def _single(self) -> Singles:
        if self._singles is None:
            self._singles = Singles(
                self._givers, self._restless, self.nodes, self._queues, self._too_young
            )
        return self._singles

    def _too_little(self, what: str, claim: Claim) -> str:
        if not claim.may_shrink:
            why = claim.standing.job.unmodelled if claim.standing else ""
            return f"{what}, and nobody shrinks for what can't be foreseen ({why})"
        if self.protected_until is not None:
            until = self.protected_until.isoformat(timespec="seconds")
            return f"{what} before protectSeconds end for some surplus at {until}"
        return f"{what} even if all surplus that may leave did"

    @property
    def _width(self) -> int:
        return len(self.nodes.dimensions.names)

    def _attempt(self, claim: Claim, own: str | None, protected: bool) -> bool:
        attempt = Attempt(self.nodes.mark())
        if all(
            self._serve_group(attempt, claim, shape, count, own, protected)
            for shape, count in claim.groups
        ):
            self._holds_more(claim.queue)
            if attempt.idle and not attempt.victims:
                self.from_idle.add(claim.key)
            for n, shape in attempt.placed:
                self._promises.setdefault(n, []).append(shape)
                self._promised[shape] += 1
            for standing in {id(v.standing): v.standing for v in attempt.victims}.values():
                standing.served[claim.key] = None
                self._complete_units(standing)
            return True
        self._undo(attempt, claim.queue)
        return False

    def _serve_group(
        self,
        attempt: Attempt,
        claim: Claim,
        shape: Shape,
        count: int,
        own: str | None,
        protected: bool,
    ) -> bool:
        queues = self._queues
        request = [amount * count for amount in shape.vector]
        need = count - self._place(attempt, shape, count)
        while need and self._make_way(attempt, shape):
            need -= self._place(attempt, shape, need)
        while need or queues.full(claim.queue, request):
            if not claim.may_shrink:
                return False
            full = queues.full(claim.queue, request)
            if full is None and own is None and self._single().suit(shape):
                victim = self._single().best(shape, claim.queue, protected)
                if victim is not None:
                    self._remove(victim)
                    attempt.victims.append(victim)
                    self._single().changed(victim.standing.job.queue)
                    need -= self._place(attempt, shape, need)
                    continue
            self._gather(attempt.victims)
            if need and self.nodes.slots(shape, Room.POTENTIAL).total() < need:
                return False
            if full is not None:
                option = self._from_full_queue(*full, claim.queue, shape, need, protected)
            else:
                option = None
                if own is not None:
                    option = self._best(shape, claim.queue, own, protected, need)
                if option is None:
                    option = self._best(shape, claim.queue, None, protected, need)
            if option is None:
                return False
            for victim in option.victims:
                self._remove(victim)
                attempt.victims.append(victim)
            need -= self._place(attempt, shape, need)
        queues.use(claim.queue, request)
        attempt.used.append(request)
        return True

    def _place(self, attempt: Attempt, shape: Shape, count: int) -> int:
        placed = self.nodes.place(shape, count, Room.IDLE)
        if len(placed) < count:
            attempt.idle = False
            placed += self.nodes.place(shape, count - len(placed), Room.COMING)
        attempt.placed += [(n, shape) for n in placed]
        return len(placed)

    def _make_way(self, attempt: Attempt, shape: Shape) -> bool:
        """Promise one pod of an earlier claim another node, if that makes a slot for `shape`."""
        nodes = self.nodes
        movable = [
            other
            for other, count in self._promised.items()
            if count and other != shape and nodes.slots(other, Room.COMING).total() > 0
        ]
        if not movable:
            return False
        for n in nodes.eligible(shape):
            here = self._promises.get(n, ())
            for other in movable:
                if other not in here:
                    continue
                mark = nodes.mark()
                nodes.give_back(n, other.vector)
                if nodes.slots(shape, Room.COMING).count(n) > 0:
                    nodes.take(n, shape.vector)
                    target = nodes.slots(other, Room.COMING).tightest()
                    nodes.give_back(n, shape.vector)
                    if target is not None and target != n:
                        nodes.take(target, other.vector)
                        self._promises[n].remove(other)
                        self._promises.setdefault(target, []).append(other)
                        attempt.moved.append((n, target, other))
                        return True
                nodes.rollback(mark)
        return False

    def _best(
        self, shape: Shape, queue: str, own: str | None, protected: bool, need: int
    ) -> Option | None:
        key = (shape, queue, own, protected)
        options = self._options.get(key)
        if options is None:
            options = self._options[key] = Options(self, shape, queue, own, protected)
        return options.best(need)

    def _from_full_queue(
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
            for member in sorted(self._by_queue)
            if self._queues.within(member, full)
            for victim in self._by_queue[member]
            if any(victim.vector[i] > 0 for i in wanted) and self.usable(victim, queue, protected)
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

    def usable(self, victim: Victim, queue: str, protected: bool) -> bool:
        return (
            (protected or not victim.pod.protected)
            and victim.pod.key in victim.standing.bound
            and self._gives(victim.standing, queue)
        )

    def _gives(self, standing: Standing, queue: str) -> bool:
        """Whether the job may lose one pod more for a claim of `queue`."""
        owner = standing.job.queue
        return standing.cost() is not None and (
            owner == queue or self._queues.may_take(owner, standing.shape.vector)
        )

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

        firsts = {victim.standing.job.key: victim for victim in reversed(candidates)}
        single = [
            offer(victim)
            for victim in firsts.values()
            if all(victim.vector[i] >= amount for i, amount in lack.items())
        ]
        if single:
            return min(single, key=lambda option: option.key)
        chosen: list[Victim] = []
        while any(amount > 0 for amount in lack.values()):
            affordable = [v for v in candidates if v not in chosen and _affordable(v, chosen)]
            if not affordable:
                return None
            best = min(
                affordable,
                key=lambda v: (
                    -sum(min(v.vector[i], a) / a for i, a in lack.items() if a > 0),
                    self._key((v,), queue, 1),
                ),
            )
            if all(best.vector[i] == 0 for i, amount in lack.items() if amount > 0):
                return None
            chosen.append(best)
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

    def _remove(self, victim: Victim) -> None:
        standing = victim.standing
        free = standing.credit > 0
        standing.pick(victim.pod)
        self.nodes.leave(victim.node, victim.vector)
        self._queues.use(standing.job.queue, victim.vector, -1)
        if not free and standing.credit:
            # The rest of the unit now leaves for nothing, wherever it is.
            self.nodes.changes.extend(self._nodes_of[standing.job.key])

    def _undo(self, attempt: Attempt, queue: str) -> None:
        self._singles = None
        for request in attempt.used:
            self._queues.use(queue, request, -1)
        for victim in reversed(attempt.victims):
            victim.standing.unpick(victim.pod)
            self._queues.use(victim.standing.job.queue, victim.vector)
        for source, target, shape in reversed(attempt.moved):
            self._promises[target].remove(shape)
            self._promises[source].append(shape)
        self.nodes.rollback(attempt.mark)

    def _complete_units(self, standing: Standing) -> None:
        """Pods chosen so far may be part of a unit; the rest of it leaves too."""
        credit, standing.credit = standing.credit, 0
        # Workers that don't exist complete a unit for nothing.
        extra = min(credit, standing.existing - standing.size)
        for pod in standing.drop(extra) if extra > 0 else []:
            n = self.nodes.index(pod.node)
            if pod.node is not None:
                self._queues.use(standing.job.queue, standing.shape.vector, -1)
                if n is not None:
                    self.nodes.leave(n, standing.shape.vector)


class Options:
    """The cheapest option of every node, best first, for one kind of claim.

    Keys only get worse while nothing on their node changes, so an entry is looked at again when it
    comes to the top; nodes that changed are entered anew.
    """

    def __init__(
        self, surplus: Surplus, shape: Shape, queue: str, own: str | None, protected: bool
    ) -> None:
        self._surplus = surplus
        self._asks = (shape, queue, own, protected)
        self._eligible = frozenset(surplus.nodes.eligible(shape))
        self._heap: list[tuple[Key, int]] = []
        self._seen = len(surplus.nodes.changes)
        for n in sorted(surplus.on_node):
            self._enter(n)

    def _enter(self, n: int) -> None:
        if n in self._eligible and n in self._surplus.on_node:
            option = self._surplus.option(n, *self._asks, need=ENDLESS)
            if option is not None:
                heapq.heappush(self._heap, (option.key, n))

    def best(self, need: int) -> Option | None:
        changes = self._surplus.nodes.changes
        if self._seen < len(changes):
            for n in sorted(set(changes[self._seen :])):
                self._enter(n)
            self._seen = len(changes)
        best: Option | None = None
        aside: list[tuple[Key, int]] = []
        while self._heap and (best is None or self._heap[0][0] < best.key):
            key, n = heapq.heappop(self._heap)
            option = self._surplus.option(n, *self._asks, need=ENDLESS)
            if option is None:
                continue
            if option.key > key:
                heapq.heappush(self._heap, (option.key, n))
                continue
            aside.append((option.key, n))
            if option.slots > need:
                # It frees more than the claim can use, so it is dearer than it looks.
                option = self._surplus.option(n, *self._asks, need=need)
            if option is not None and (best is None or option.key < best.key):
                best = option
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return best


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
