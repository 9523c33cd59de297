"""Delete-first: room for one claim on real nodes, made by surplus pods that leave if need be.

A claim is served in steps, each of which may end it:

  1. its queue must be open, and even all surplus together must be enough; otherwise it is blocked;
  2. idle and releasing room: nobody leaves;
  3. moves: claims served before, and not started yet, are promised other nodes;
  4. surplus: the cheapest option of all nodes again and again, until it fits: first without
     protected pods, then with them (see `victims`). A job that runs without its worker 0 asks its
     own surplus first;
  5. surplus and moves together: all promises are taken back and made anew with the claim's, the
     largest pods first, which may take surplus on nodes that the claim itself has no use for.

An attempt that fails leaves no trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from operator import add
from typing import NamedTuple

from volcano_elastic.cluster_state.claim import Claim, Group
from volcano_elastic.cluster_state.fact import fact
from volcano_elastic.cluster_state.fit import PODS, Shape, Vector
from volcano_elastic.cluster_state.job_state import JobState
from volcano_elastic.cluster_state.node_state import slots_in
from volcano_elastic.cluster_state.words import names
from volcano_elastic.queue_policy.draft import Draft, JobDraft
from volcano_elastic.queue_policy.node_room import Room
from volcano_elastic.queue_policy.option import ALL, BestFirst, Option, Victim, VictimRequest
from volcano_elastic.queue_policy.queue_room import Full
from volcano_elastic.queue_policy.victims import VictimSearch


class Placed(NamedTuple):
    """A pod's place: the number of a node, and the pod's shape."""

    node: int
    shape: Shape


@dataclass(slots=True)
class _Attempt:
    claim: Claim
    protected: bool
    """True if protected pods may leave."""
    placed: list[Placed] = field(default_factory=list)
    victims: list[Victim] = field(default_factory=list)
    idle: bool = True
    """Idle room alone has been enough."""
    easing: tuple[Full, BestFirst[str]] | None = None
    """The queue or quota that is full just now, and jobs whose pods make room there."""


class ClaimPlacement:
    """Serves claims, one after the other."""

    def __init__(self, draft: Draft, freed: Mapping[str, datetime]) -> None:
        """`freed`: until when no more surplus leaves for a claim, by its key."""
        self.freed = freed
        self._draft, self._nodes, self._queues = draft, draft.nodes, draft.queues
        self.from_idle: set[str] = set()
        """Keys of the claims served by idle room alone."""
        self.from_surplus: set[str] = set()
        """Keys of those that somebody leaves for."""
        self.taken: dict[str, set[str]] = {}
        """Uids of the pods that leave, by key of the claim."""
        self._promises: dict[int, list[Shape]] = {}
        """By node, pods of claims that it has been promised to."""
        self._promised: Counter[Shape] = Counter()
        self._possible: dict[tuple[int, tuple[Group, ...], bool], bool] = {}
        """By version of the plan, whether all nodes together might have room."""

    @fact
    def _search(self) -> VictimSearch:
        """Made for the first claim: mostly nobody asks."""
        return VictimSearch(self._draft)

    def serve(self, claim: Claim) -> str | None:
        """Keep room for the claim, asking surplus to leave if need be; else say why it cannot."""
        impossible = self._why_impossible(claim)
        if impossible is not None:
            return impossible
        may_shrink, mark = self._may_shrink(claim), self._draft.journal.mark()
        if claim.job is not None:
            self._draft.job(claim.key).promise(claim.workers)
            # A job that was short of its minimum may have surplus again.
            self._search.may_give_again(self._draft.job(claim.key))
        may_move = bool(self._promised.keys() - {shape for shape, _ in claim.groups})
        tries = product((False, True)[: 1 + may_shrink], (False, True)[: 1 + may_move])
        if any(self._attempt(_Attempt(claim, protected), move) for protected, move in tries):
            return None
        self._draft.journal.rollback(mark)
        short = self._queues.full(claim.queue, claim.request)
        if short is not None:
            return self._too_little(f"queue {short.queue} has too little room for it", claim)
        if (quota := self._quota_full(claim)) is not None:
            what = f"the ResourceQuota of namespace {quota.queue} has too little room for it"
            return self._too_little(what, claim)
        return self._too_little("there is too little room for it", claim)

    def _may_shrink(self, claim: Claim) -> bool:
        """Return whether surplus of any job may leave for the claim."""
        if claim.key in self.freed:
            return False
        if claim.priority is None:
            return not claim.unmodelled
        queues = self._draft.cluster.queues.values()
        return claim.priority >= min([queue.yields_from for queue in queues], default=math.inf)

    def _why_impossible(self, claim: Claim) -> str | None:
        """Why the claim could not be served even if all surplus left; None if it might be. As long
        as nobody is served that is the same for all claims of its kind."""
        closed = self._queues.tree.closed(claim.queue)
        if closed is not None:
            return closed
        may_shrink = self._may_shrink(claim)
        asks = (self._draft.journal.version, claim.groups, may_shrink)
        if asks not in self._possible:
            fits = all(self._might_fit(*group, may_shrink) for group in claim.groups)
            self._possible[asks] = fits
        if not self._possible[asks]:
            return self._too_little("the nodes have too little room for it", claim)
        full = self._queues.full(claim.queue, claim.request)
        if full is not None and may_shrink:
            full = self._queues.full(claim.queue, claim.request, self._draft.cluster.surplus)
        if full is not None:
            return self._too_little(f"queue {full.queue} has too little room for it", claim)
        return None

    def _might_fit(self, shape: Shape, count: int, may_shrink: bool) -> bool:
        """Return whether the pods might fit if every promise moved and all surplus left."""
        if self._nodes.slots(shape, Room.RELEASING).total() >= count:
            return True
        if may_shrink and self._search.might_fit(shape, count):
            return True
        if self._promised.keys() <= {shape}:
            return False
        # Without the promises made to pods of other shapes.
        kind = Room.RECLAIMABLE if may_shrink else Room.RELEASING
        found = self._nodes.slots(shape, kind).total()
        for n in self._promises.keys() & set(self._draft.cluster.eligible(shape)):
            room = self._nodes.left(n, kind)
            others = [other.vector for other in self._promises[n] if other != shape]
            without = [sum(column) for column in zip(room, *others, strict=True)]
            found += slots_in(without, shape) - slots_in(room, shape)
        return found >= count

    def _too_little(self, what: str, claim: Claim) -> str:
        if claim.unmodelled:
            return f"{what}, and nobody shrinks for what can't be foreseen ({claim.unmodelled})"
        if claim.key in self.freed:
            until = self.freed[claim.key].isoformat(timespec="seconds")
            return f"{what}, and others have what left for it: nothing leaves again until {until}"
        if not self._may_shrink(claim):
            return f"{what}, and no surplus gives way to a pod of priority {claim.priority}"
        if self._search.protected_until is not None:
            until = self._search.protected_until.isoformat(timespec="seconds")
            return f"{what} before protectSeconds end for some surplus at {until}"
        return f"{what} even if all surplus that may leave did{self._left_to_volcano(claim)}"

    def _left_to_volcano(self, claim: Claim) -> str:
        """Name the owners of surplus that would help the claim and that only Volcano may evict."""
        resources = self._draft.cluster.dimensions.names
        needed = [i for i, n in enumerate(claim.request) if n > 0 and resources[i] != PODS]
        gangs = [key for key, gang in self._draft.cluster.gangs.items() if gang.gives(needed)]
        whose = names(sorted(gangs), full=True)
        return f"; surplus of {whose} is Volcano's to evict" if gangs else ""

    def _attempt(self, attempt: _Attempt, move: bool) -> bool:
        claim, mark = attempt.claim, self._draft.journal.mark()
        if not self._ease_quota(attempt):
            self._search.undo(mark)
            return False
        groups = [(group, True) for group in claim.groups]
        if move:
            groups += [(group, False) for group in self._take_back()]
            groups.sort(
                key=lambda found: (
                    [-amount for amount in found[0].shape.vector],
                    len(self._draft.cluster.eligible(found[0].shape)),
                )
            )
        if not all(self._serve_group(attempt, group, new) for group, new in groups):
            self._search.undo(mark)
            return False
        if attempt.victims:
            self.from_surplus.add(claim.key)
            self.taken[claim.key] = {victim.pod.uid for victim in attempt.victims}
        elif attempt.idle:
            self.from_idle.add(claim.key)
        self._promise(attempt.placed)
        for job in {victim.job.job.key: victim.job for victim in attempt.victims}.values():
            job.served[claim.key] = None
            self._complete_units(job)
        return True

    def _ease_quota(self, attempt: _Attempt) -> bool:
        """Have surplus of the claim's namespace leave until quotas let its pods be made. It has to
        leave wherever the claim finds its nodes, so it leaves first."""
        claim, cluster = attempt.claim, self._draft.cluster
        while (full := self._quota_full(claim)) is not None:
            jobs = (job for job in cluster.jobs.values() if job.namespace == full.queue)
            option = self._ease(attempt, full, jobs) if self._may_shrink(claim) else None
            if option is None:
                return False
            self._evict(attempt, option)
        attempt.easing = None
        if claim.job is not None:
            job = self._draft.job(claim.key)
            self._draft.quotas.use(job.state.namespace, self._unmade(claim, job), 1)
        return True

    def _ease(self, attempt: _Attempt, full: Full, jobs: Iterable[JobState]) -> Option | None:
        """The cheapest pod of these jobs whose leaving makes room in what is full."""
        if attempt.easing is None or attempt.easing[0] != full:
            easing = self._search.easing(full, jobs, attempt.claim, attempt.protected)
            attempt.easing = full, easing
        return attempt.easing[1].first()

    def _evict(self, attempt: _Attempt, option: Option) -> None:
        """Have an option's pods leave."""
        self._search.evict(option.victims)
        attempt.victims += option.victims
        if attempt.easing is not None:
            attempt.easing[1].enter({victim.job.job.key for victim in option.victims})

    def _quota_full(self, claim: Claim) -> Full | None:
        """Its namespace, if quotas would not let the pods of a newcomer be made. While some are
        being made nobody knows how many the quota counts already."""
        if claim.job is None or not self._draft.quotas.scope(claim.key):
            return None
        job = self._draft.job(claim.key)
        if job.state.pods:
            return None
        return self._draft.quotas.full(job.state.namespace, self._unmade(claim, job))

    @staticmethod
    def _unmade(claim: Claim, job: JobDraft) -> Vector:
        """Amounts of its pods that don't exist."""
        state, absent = job.state, max(0, claim.workers - len(job.unbound))
        total = [amount * absent for amount in state.counted]
        if state.master_shape is not None and not state.pods:
            total = list(map(add, total, state.master_shape.vector))
        return tuple(total)

    def _promise(self, placed: Sequence[Placed]) -> None:
        for n, shape in placed:
            self._promises.setdefault(n, []).append(shape)
            self._promised[shape] += 1
        self._draft.journal.note(self._unpromise, placed)

    def promised(self, shapes: Collection[Shape]) -> dict[int, Vector]:
        """Return by node the room promised to pods of these shapes."""
        promises = self._promises.items() if shapes else ()
        found = {n: [s.vector for s in here if s in shapes] for n, here in promises}
        return {n: tuple(map(sum, zip(*each, strict=True))) for n, each in found.items() if each}

    def _unpromise(self, placed: Sequence[Placed]) -> None:
        for n, shape in placed:
            self._promises[n].remove(shape)
        self._promised -= Counter(shape for _, shape in placed)

    def _set_promises(self, promises: dict[int, list[Shape]], promised: Counter[Shape]) -> None:
        self._promises, self._promised = promises, promised

    def _take_back(self) -> list[Group]:
        """Take back all promises; what was promised."""
        for n, shapes in self._promises.items():
            for shape in shapes:
                self._nodes.take(n, shape.vector, -1)
        promised = [Group(shape, count) for shape, count in self._promised.items()]
        self._draft.journal.note(self._set_promises, self._promises, self._promised)
        self._set_promises({}, Counter())
        return promised

    def _serve_group(self, attempt: _Attempt, group: Group, new: bool) -> bool:
        """`new`: its queue does not count these yet."""
        claim, queues, (shape, count) = attempt.claim, self._queues, group
        request = [amount * count for amount in shape.vector] if new else []
        need = count - self._place(attempt, shape, count)
        while need and self._make_way(shape):
            need -= self._place(attempt, shape, need)
        # What leaves has been counted as leaving: it fits then as it does now.
        if need and not self._search.might_fit(shape, need):
            return False
        full = queues.full(claim.queue, request)
        if (full or need) and not self._may_shrink(claim):
            return False
        while full or need:
            option = self._option(attempt, shape, need, None if full is None else full.queue)
            if option is None and full is not None:
                option = self._ease(attempt, full, self._draft.cluster.jobs_within(full.queue))
            if option is None:
                return False
            self._evict(attempt, option)
            # Nowhere else is room for any of them.
            n = option.victims[0].node
            places = self._nodes.place_on(n, shape, need)
            attempt.placed += [Placed(n, shape)] * places
            need -= places
            full = full and queues.full(claim.queue, request)
        attempt.easing = None
        queues.use(claim.queue, request)
        return True

    def _option(
        self, attempt: _Attempt, shape: Shape, need: int, within: str | None
    ) -> Option | None:
        """The cheapest option for one of `need` pods, from surplus of the queue `within` if any."""
        if not need:
            return None
        queue, own = attempt.claim.queue, attempt.claim.own if within is None else None
        asked = (attempt.protected, ALL, attempt.claim.priority, within)
        option = self._search.best(VictimRequest(shape, queue, own, *asked), need)
        if option is None and own is not None:
            option = self._search.best(VictimRequest(shape, queue, None, *asked), need)
        return option

    def _place(self, attempt: _Attempt, shape: Shape, count: int) -> int:
        attempt.idle = attempt.idle and self._nodes.slots(shape, Room.IDLE).total() >= count
        placed = self._nodes.place(shape, count, Room.RELEASING)
        attempt.placed += [Placed(n, shape) for n in placed]
        return len(placed)

    def _make_way(self, shape: Shape) -> bool:
        """Promise one pod of an earlier claim another node, if that makes a slot for `shape`."""
        nodes, journal = self._nodes, self._draft.journal
        movable = [
            other
            for other, count in self._promised.items()
            if count and other != shape and nodes.slots(other, Room.RELEASING).total() > 0
        ]
        if not movable:
            return False
        for n in nodes.cluster.eligible(shape):
            here = self._promises.get(n, ())
            for other in movable:
                if other not in here:
                    continue
                mark = journal.mark()
                nodes.take(n, other.vector, -1)
                if nodes.slots(shape, Room.RELEASING).count(n) > 0:
                    nodes.take(n, shape.vector)
                    target = nodes.slots(other, Room.RELEASING).tightest()
                    nodes.take(n, shape.vector, -1)
                    if target is not None and target != n:
                        nodes.take(target, other.vector)
                        self._move(n, target, other)
                        journal.note(self._move, target, n, other)
                        return True
                journal.rollback(mark)
        return False

    def _move(self, source: int, target: int, shape: Shape) -> None:
        self._promises[source].remove(shape)
        self._promises.setdefault(target, []).append(shape)

    def _complete_units(self, job: JobDraft) -> None:
        """Pods chosen so far may be part of a unit; the rest of it leaves too."""
        remainder, job.unit_remainder = job.unit_remainder, 0
        # Workers that don't exist complete a unit for nothing.
        extra = min(remainder, job.existing - job.size) if remainder else 0
        if extra > 0:
            self._draft.release(job, job.drop(extra), reclaimed=True)
