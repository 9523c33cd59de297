"""Delete-first: which surplus pods leave so that a claim really fits on real nodes.

A claim is served in steps, each of which may end it:

  1. its queue must be open, and even all surplus together must be enough; otherwise it is blocked;
  2. idle and coming room: nobody leaves;
  3. moves: claims served before, and not started yet, are promised other nodes;
  4. surplus: the cheapest option of all nodes again and again, until it fits: first without
     protected pods, then with them. An option is a smallest set of pods of one node whose leaving
     makes room for one pod more. A job that runs without its worker 0 asks its own surplus first;
  5. surplus and moves together: all promises are taken back and made anew with the claim's, the
     largest pods first, which may take surplus on nodes that the claim itself has no use for.

Whatever fails leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, product

from volcano_elastic.queue_policy.cheapest import Cheapest
from volcano_elastic.queue_policy.claims import Claim, Group
from volcano_elastic.queue_policy.departure import leave
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.queue_room import Full, QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.single import Givers, Openings, Singles, surplus_in
from volcano_elastic.queue_policy.standing import Standing
from volcano_elastic.queue_policy.surplus import Surplus
from volcano_elastic.queue_policy.victim import Ask, Victim


@dataclass(slots=True)
class Attempt:
    """What serving one claim has done so far; enough to undo it."""

    mark: int
    placed: list[tuple[int, Shape]] = field(default_factory=list)
    moved: list[tuple[int, int, Shape]] = field(default_factory=list)
    """(from node, to node, shape)"""
    lifted: dict[int, list[Shape]] | None = None
    """The promises that were taken back, if they were."""
    victims: list[Victim] = field(default_factory=list)
    used: list[list[int]] = field(default_factory=list)
    """What the claim's groups took of its queue's room."""
    idle: bool = True
    """Idle room alone has been enough."""


class Shrink:
    """Serves claims, one after the other."""

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
        self._nodes, self._queues = nodes, queues
        self._givers, self._restless = givers, restless
        self._surplus = Surplus(nodes, queues, standings, now)
        self._cheapest = Cheapest(self._surplus, nodes, queues)
        self.from_idle: set[str] = set()
        """Keys of the claims served by idle room alone."""
        self.from_surplus: set[str] = set()
        """Keys of those that somebody leaves for."""
        self._singles: Singles | None = None
        self._openings: dict[Shape, Openings] = {}
        self._promises: dict[int, list[Shape]] = {}
        self._promised: Counter[Shape] = Counter()
        self._failed: dict[tuple[object, ...], int] = {}
        self._suffices: dict[tuple[tuple[Group, ...], bool], bool] = {}
        """As `_nodes_suffice` says, since a claim was served."""
        self._surplus_in: Mapping[str, Sequence[int]] | None = None
        """By queue, at most what might leave it."""
        self.served = 0
        """Claims so far."""

    def forget_failures(self) -> None:
        """Room has come free in another way than by `serve`: try everything again."""
        self._failed.clear()
        self._suffices.clear()
        self._surplus.forget()
        self._cheapest.forget()
        self._singles = None
        self._openings.clear()

    def serve(self, claim: Claim) -> str | None:
        """Keep room for the claim, asking surplus to leave if need be; else say why it cannot."""
        hopeless = self.hopeless(claim)
        if hopeless is not None:
            return hopeless
        own = claim.key if claim.own_surplus_first else None
        memory = (claim.queue, claim.groups, own)
        if self._failed.get(memory) == self.served:
            return self._too_little("there is too little room for it", claim)
        if claim.standing is not None:
            claim.standing.promised += claim.workers
        tries = (False, True) if claim.may_shrink else (False,)
        lifts = (
            (False, True)
            if self._promised.keys() - {shape for shape, _ in claim.groups}
            else (False,)
        )
        if any(self._attempt(claim, own, *how) for how in product(tries, lifts)):
            self._note_served([claim])
            # A job that was short of its minimum may have surplus again.
            self._nodes.changes.extend(self._surplus.nodes_of.get(claim.key, ()))
            return None
        if claim.standing is not None:
            claim.standing.promised -= claim.workers
        self._failed[memory] = self.served
        short = self._queues.full(claim.queue, claim.request)
        if short is not None:
            return self._too_little(f"queue {short.queue} has too little room for it", claim)
        return self._too_little("there is too little room for it", claim)

    def idle_for(self, claim: Claim) -> int:
        """How many claims of its kind could be served one after the other from idle room alone; 0
        where it takes more to tell."""
        if len(claim.groups) != 1 or self._queues.closed(claim.queue) is not None:
            return 0
        ((shape, count),) = claim.groups
        slots = self._nodes.slots(shape, Room.IDLE).total() // count
        return min(slots, self._queues.fits_often(claim.queue, claim.request))

    def serve_from_idle(self, claims: Sequence[Claim]) -> None:
        """`serve` for claims of one kind that have not started, no more than `idle_for` says."""
        queue, ((shape, count),) = claims[0].queue, claims[0].groups
        for n in self._nodes.place(shape, count * len(claims), Room.IDLE):
            self._promises.setdefault(n, []).append(shape)
        self._promised[shape] += count * len(claims)
        self._queues.use(queue, claims[0].request, len(claims))
        self._holds_more(queue)
        self.from_idle.update(claim.key for claim in claims)
        for claim in claims:
            if claim.standing is not None:
                claim.standing.promised += claim.workers
        self._note_served(claims)

    def _note_served(self, claims: Sequence[Claim]) -> None:
        self.served += len(claims)
        self._suffices.clear()
        for claim in claims:
            if claim.standing is not None:
                # It has been promised something that the next plan must forget.
                claim.standing.touched.add(claim.key)

    def hopeless(self, claim: Claim) -> str | None:
        """Why the claim could not be served even if all surplus left; None if it might be. As long
        as nobody is served that is the same for all claims of its kind."""
        closed = self._queues.closed(claim.queue)
        if closed is not None:
            return closed
        if not self._nodes_suffice(claim):
            return self._too_little("the nodes have too little room for it", claim)
        full = self._full(claim)
        if full is not None:
            return self._too_little(f"queue {full} has too little room for it", claim)
        return None

    def _nodes_suffice(self, claim: Claim) -> bool:
        """Whether all nodes together might have room for it, whatever its queue."""
        asks = (claim.groups, claim.may_shrink)
        found = self._suffices.get(asks)
        if found is None:
            found = self._suffices[asks] = all(
                self._might_fit(shape, count, claim.may_shrink) for shape, count in claim.groups
            )
        return found

    def _might_fit(self, shape: Shape, count: int, may_shrink: bool) -> bool:
        """Whether it might be so if all that was promised before were promised elsewhere, and if
        all surplus left."""
        kind, found = Room.COMING, self._nodes.slots(shape, Room.COMING).total()
        if found < count and may_shrink:
            if self._single().suit(shape):
                found += self._single().pods
            else:
                self._surplus.gather()
                kind, found = Room.POTENTIAL, self._nodes.slots(shape, Room.POTENTIAL).total()
        return found >= count or found + self._by_moving(shape, kind) >= count

    def _by_moving(self, shape: Shape, kind: Room) -> int:
        """How many more might fit without the promises made to pods of other shapes."""
        if self._promised.keys() <= {shape}:
            return 0
        slots = self._nodes.slots(shape, kind)
        eligible, more = set(self._nodes.eligible(shape)), 0
        for n in eligible & self._promises.keys():
            mark, before = self._nodes.mark(), slots.count(n)
            for other in self._promises[n]:
                if other != shape:
                    self._nodes.give_back(n, other.vector)
            more += slots.count(n) - before
            self._nodes.rollback(mark)
        return more

    def _full(self, claim: Claim) -> str | None:
        """The queue that has too little room even if all surplus that counts in it left."""
        if self._queues.full(claim.queue, claim.request) is None:
            return None
        leaving: Mapping[str, Sequence[int]] = {}
        if claim.may_shrink:
            if self._surplus_in is None:
                self._surplus_in = self._queues.sums(surplus_in(self._givers, self._restless))
            leaving = self._surplus_in
        full = self._queues.full(claim.queue, claim.request, leaving)
        return None if full is None else full.queue

    def _holds_more(self, queue: str) -> None:
        self._cheapest.holds_more(queue)
        if self._singles is not None:
            self._singles.changed(queue)

    def _single(self) -> Singles:
        if self._singles is None:
            self._singles = Singles(
                self._givers, self._restless, self._nodes, self._queues, self._surplus.too_young
            )
        return self._singles

    def _opens(self, shape: Shape) -> bool:
        """Whether a single pod that leaves may make room for one of `shape`."""
        single = self._single()
        if not single.suit(shape):
            return False
        if shape not in self._openings:
            self._openings[shape] = Openings(self._nodes, shape, single.vectors)
        return self._openings[shape].any()

    def _too_little(self, what: str, claim: Claim) -> str:
        if not claim.may_shrink:
            why = claim.standing.job.unmodelled if claim.standing else ""
            return f"{what}, and nobody shrinks for what can't be foreseen ({why})"
        if self._surplus.protected_until is not None:
            until = self._surplus.protected_until.isoformat(timespec="seconds")
            return f"{what} before protectSeconds end for some surplus at {until}"
        return f"{what} even if all surplus that may leave did"

    def _attempt(self, claim: Claim, own: str | None, protected: bool, lift: bool) -> bool:
        attempt = Attempt(self._nodes.mark())
        groups = [(shape, count, True) for shape, count in claim.groups]
        if lift:
            groups += [(shape, count, False) for shape, count in self._lift(attempt)]
            groups.sort(key=lambda g: ([-a for a in g[0].vector], len(self._nodes.eligible(g[0]))))
        if all(self._serve_group(attempt, claim, *group, own, protected) for group in groups):
            self._holds_more(claim.queue)
            if attempt.victims:
                self.from_surplus.add(claim.key)
            elif attempt.idle:
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

    def _lift(self, attempt: Attempt) -> Sequence[Group]:
        """Take back all promises; what was promised."""
        for n, shapes in self._promises.items():
            for shape in shapes:
                self._nodes.give_back(n, shape.vector)
        promised = list(self._promised.items())
        attempt.lifted = self._promises
        self._promises, self._promised = {}, Counter()
        return promised

    def _serve_group(
        self,
        attempt: Attempt,
        claim: Claim,
        shape: Shape,
        count: int,
        new: bool,
        own: str | None,
        protected: bool,
    ) -> bool:
        """`new`: its queue does not count these yet."""
        queues = self._queues
        request = [amount * count for amount in shape.vector] if new else []
        need = count - self._place(attempt, shape, count)
        while need and self._make_way(attempt, shape):
            need -= self._place(attempt, shape, need)
        while need or queues.full(claim.queue, request):
            if not claim.may_shrink:
                return False
            full = queues.full(claim.queue, request)
            if own is None:
                victim = self._single_victim(shape if need else None, claim.queue, protected, full)
                if victim is not None:
                    self._remove(victim)
                    attempt.victims.append(victim)
                    self._single().changed(victim.standing.job.queue)
                    need -= self._place(attempt, shape, need)
                    continue
            self._surplus.gather(attempt.victims)
            if need and self._nodes.slots(shape, Room.POTENTIAL).total() < need:
                return False
            within = None if full is None else full.queue
            ask = Ask(shape, claim.queue, own if full is None else None, protected, need, within)
            option = self._cheapest.best(ask) if need else None
            if option is None and full is not None:
                option = self._surplus.any_of(full, claim.queue, protected)
            elif option is None and ask.own is not None:
                option = self._cheapest.best(replace(ask, own=None))
            if option is None:
                return False
            for victim in option.victims:
                self._remove(victim)
                attempt.victims.append(victim)
            need -= self._place(attempt, shape, need)
        queues.use(claim.queue, request)
        attempt.used.append(request)
        return True

    def _single_victim(
        self, shape: Shape | None, queue: str, protected: bool, full: Full | None
    ) -> Victim | None:
        """`shape`: what needs room on a node; None: its queue alone has too little."""
        single = self._single()
        if not (single.alone if shape is None else self._opens(shape)):
            return None
        return single.best(shape, queue, protected, full)

    def _place(self, attempt: Attempt, shape: Shape, count: int) -> int:
        placed = self._nodes.place(shape, count, Room.IDLE)
        if len(placed) < count:
            attempt.idle = False
            placed += self._nodes.place(shape, count - len(placed), Room.COMING)
        attempt.placed += [(n, shape) for n in placed]
        return len(placed)

    def _make_way(self, attempt: Attempt, shape: Shape) -> bool:
        """Promise one pod of an earlier claim another node, if that makes a slot for `shape`."""
        nodes = self._nodes
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

    def _remove(self, victim: Victim) -> None:
        standing = victim.standing
        free = standing.credit > 0
        standing.pick(victim.pod)
        self._nodes.leave(victim.node, victim.vector)
        self._queues.use(standing.job.queue, victim.vector, -1)
        if not free and standing.credit:
            # The rest of the unit now leaves for nothing, wherever it is.
            self._nodes.changes.extend(self._surplus.nodes_of[standing.job.key])

    def _undo(self, attempt: Attempt, queue: str) -> None:
        self._singles = None
        # Keys that got worse during the attempt are better again, which no heap would notice.
        self._cheapest.forget_lines()
        for request in attempt.used:
            self._queues.use(queue, request, -1)
        for victim in reversed(attempt.victims):
            victim.standing.unpick(victim.pod)
            self._queues.use(victim.standing.job.queue, victim.vector)
        for source, target, shape in reversed(attempt.moved):
            self._promises[target].remove(shape)
            self._promises[source].append(shape)
        if attempt.lifted is not None:
            self._promises = attempt.lifted
            self._promised = Counter(chain.from_iterable(attempt.lifted.values()))
        self._nodes.rollback(attempt.mark)

    def _complete_units(self, standing: Standing) -> None:
        """Pods chosen so far may be part of a unit; the rest of it leaves too."""
        credit, standing.credit = standing.credit, 0
        # Workers that don't exist complete a unit for nothing.
        extra = min(credit, standing.existing - standing.size)
        if extra > 0:
            leave(standing, standing.drop(extra), self._nodes, self._queues)
