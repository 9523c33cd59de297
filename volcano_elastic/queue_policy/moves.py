"""Create-last: room moves to the jobs that gain most from it, from whoever loses least by it.

Takers are jobs; each asks for its next step. Donors are, in turn:

  idle room       nobody loses anything
  releasing room  is on its way already: it is promised, so that nobody is asked for more than lacks
  other jobs      give a step of theirs when the gain is at least the policy's `gap` times the loss,
                  and pays back the pauses of both jobs: what both together gain in log(speed) while
                  the change lasts (see `LASTS`) is more than the time both stand still

Within a queue the policy's order decides; between queues what the next step is worth (see `speed`),
and more where the queue deserves it (`JobState.worth_by_right`).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple, TypeAlias

from volcano_elastic.cluster_state.fact import fact
from volcano_elastic.cluster_state.fit import Shape
from volcano_elastic.cluster_state.job_state import (
    GrowthKey,
    JobState,
    LossKey,
    growth_end,
    growth_key,
    loss_key,
)
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.queue_policy.draft import Draft, JobDraft
from volcano_elastic.queue_policy.node_room import Room
from volcano_elastic.snapshot.snapshot import Pod

LASTS = 1800.0
"""Seconds that any change is expected to last, however young the job: for how long a job goes on
its age is the best guess there is, but of a young job it says little."""
PART_LASTS = 120.0
"""The same for a part of a step: the rest of it will stop the job again."""
TRIES = 8
"""Givers looked at for one taker: with pods of several sizes few of the first may help."""


class Outcome(Enum):
    """The end of one taker's turn with a donor."""

    TOOK = 1
    """A whole step: it may ask for another."""
    LATER = 2
    """There was too little room: the next donor may have more."""
    DONE = 3
    NOBODY_TAKES = 4
    """Nor would anybody behind it get anything from this donor."""


Precedence = tuple[float, GrowthKey]
"""A step's worth between queues, negative, and the job at the head of a growth queue; the smallest
goes first."""

Donor: TypeAlias = "FreeRoom | OtherJobs"


@dataclass(slots=True)
class GrowthQueue:
    """Jobs of one queue and shape that may grow."""

    queue: str
    shape: Shape
    jobs: list[GrowthKey] = field(default_factory=list)
    """A heap."""


class Moves:
    """Gives jobs their next steps, the most worth first, from one donor after another."""

    def __init__(
        self,
        draft: Draft,
        resting: Collection[str],
        rebalanced: Mapping[str, datetime],
        newcomers: Sequence[JobDraft],
    ) -> None:
        """
        resting: keys of jobs that neither grow nor give.
        rebalanced: by queue, when a job of it last gave to another's growth.
        newcomers: jobs that this plan lets start; what they get now costs them no pause.
        """
        self.draft, self._resting = draft, resting
        self._jobs, self._now = draft.cluster.jobs, draft.now
        self.rebalanced, self.seconds = rebalanced, draft.now.timestamp()
        self.why: dict[str, Reason] = {}
        """Why those that had a turn grow no further."""
        self._growth_queues = {
            (name, shape): GrowthQueue(name, shape, list(keys))
            for name, queue in draft.cluster.queues.items()
            for shape, keys in queue.growth.items()
        }
        for job in newcomers:
            key = self.key(job)
            if key is not None:
                kind = (job.job.queue, job.state.shape)
                heapq.heappush(self._growth_queues.setdefault(kind, GrowthQueue(*kind)).jobs, key)
        self.of_queue: defaultdict[str, list[GrowthQueue]] = defaultdict(list)
        for takers in self._growth_queues.values():
            self.of_queue[takers.queue].append(takers)

    def run(self) -> None:
        """Ask idle room, then releasing room, then other jobs, until nobody gets anything."""
        nodes, growing = self.draft.nodes, self._growth_queues.values()
        if any(nodes.slots(s, Room.IDLE).total() for s in {takers.shape for takers in growing}):
            self._ask(FreeRoom(self, Room.IDLE))
        if nodes.kept or nodes.bases[Room.RELEASING] != nodes.bases[Room.IDLE]:
            self._ask(FreeRoom(self, Room.RELEASING))
        others = OtherJobs(self)
        if any(others.may_give_to(takers.jobs[0]) for takers in growing if takers.jobs):
            self._ask(others)

    def key(self, job: JobDraft) -> GrowthKey | None:
        """The job's place for the step after what it has got so far."""
        return growth_key(job.state, job.size + job.pending_growth)

    def rests(self, key: str) -> bool:
        """Return whether a job that may grow stays as it is in this plan."""
        ready = self._jobs[key].ready
        return (ready is not None and ready > self._now) or key in self._resting

    def _ask(self, donor: Donor) -> None:
        """Give each taker its turn with one donor, until nobody gets anything."""
        heap = [
            (precedence, number, takers)
            for number, takers in enumerate(self._growth_queues.values())
            if (precedence := self._precedence(donor, takers)) is not None
        ]
        heapq.heapify(heap)
        later: list[tuple[GrowthQueue, GrowthKey]] = []
        out_of_reach: list[tuple[int, GrowthQueue]] = []
        while heap:
            precedence, number, takers = heap[0]
            now = self._precedence(donor, takers, precedence)
            if now is None:
                heapq.heappop(heap)
                out_of_reach.append((number, takers))
                continue
            if now > precedence:
                # Its next job gains less, or its queue would borrow now: it queues again.
                precedence = now
                heapq.heapreplace(heap, (now, number, takers))
            if heap[0][1] == number:
                taker = heapq.heappop(takers.jobs).job
                outcome = donor.give(taker)
                if outcome is Outcome.NOBODY_TAKES:
                    break
                if outcome is not Outcome.DONE:
                    key = self.key(self.draft.job(taker))
                    if key is not None and outcome is Outcome.TOOK:
                        heapq.heappush(takers.jobs, key)
                    elif key is not None:
                        later.append((takers, key))
                if outcome is Outcome.TOOK and donor.by_gain:
                    # Others may get something now, if their turn is not over.
                    for other, passed in out_of_reach:
                        while passed.jobs and passed.jobs[0] < precedence[-1]:
                            heapq.heappop(passed.jobs)
                        again = self._precedence(donor, passed)
                        if again is not None:
                            heapq.heappush(heap, (again, other, passed))
                    out_of_reach.clear()
        for takers, key in later:
            heapq.heappush(takers.jobs, key)

    def _precedence(
        self, donor: Donor, takers: GrowthQueue, before: Precedence | None = None
    ) -> Precedence | None:
        """Return the queue's precedence now; `before`: when last asked, maybe for another job."""
        if not donor.reaches(takers):
            return None
        while takers.jobs:
            key = takers.jobs[0]
            if donor.by_gain and before is not None and before[-1] is key:
                return before
            if not self.rests(key.job):
                return donor.precedence(takers, key)
            heapq.heappop(takers.jobs)
        return None


class FreeRoom:
    """Room that is idle, or releasing: then it is only promised."""

    by_gain = False
    """A growth queue's precedence does not depend on the job at its head alone."""

    def __init__(self, moves: Moves, room: Room) -> None:
        self._moves, self._draft, self._room = moves, moves.draft, room
        self._nodes, self._queues = moves.draft.nodes, moves.draft.queues
        self._asked: dict[str, float] = {}
        """By queue whose order has keys, the worth of its last precedence, negative."""

    def reaches(self, takers: GrowthQueue) -> bool:
        """Return whether a node has room for a pod of the queue's shape."""
        shape, nodes = takers.shape, self._nodes
        free = nodes.slots(shape, self._room).total() > 0
        return free and not (nodes.kept and self._room is Room.IDLE and nodes.contested(shape))

    def precedence(self, takers: GrowthQueue, key: GrowthKey) -> Precedence:
        """Return the step's worth, doubled while the queue deserves it, and the job in front."""
        queues = self._moves.of_queue[takers.queue]
        in_front = [key] if len(queues) == 1 else [one.jobs[0] for one in queues if one.jobs]
        by_order = self._draft.cluster.jobs[key.job].order_key is not None
        # Within the queue order keys decide, whatever the jobs' pods ask for.
        worth = min(one.worth for one in in_front) if by_order else key.worth
        front = self._draft.cluster.jobs[min(in_front).job]
        # One answer for the whole queue: else small pods, whose step it still deserves, would take
        # from large ones what `OtherJobs` gives these back.
        if not self._queues.beyond_deserved(takers.queue, front.unit_vector):
            worth = -front.worth_by_right(-worth)
        if by_order:
            # Who is next by its key may gain more than who was first. Did that count, it would go
            # before its queue's jobs of other shapes, whose precedence was worked out earlier.
            worth = self._asked[takers.queue] = max(worth, self._asked.get(takers.queue, worth))
        return worth, key

    def give(self, key: str) -> Outcome:
        """Let it grow by the next step, or by as much of it as there is room for."""
        taker = self._draft.job(key)
        why = self._grow(taker)
        if why is not None:
            self._moves.why[key] = why
        end = growth_end(taker.state, taker.size + taker.pending_growth)
        if end is not None:
            # What is only on its way is no room yet.
            self._moves.why[key] = Reason.NO_ROOM if taker.pending_growth else end
            return Outcome.DONE
        if why is None:
            return Outcome.TOOK
        return Outcome.LATER if why is Reason.NO_ROOM else Outcome.DONE

    def _grow(self, taker: JobDraft) -> Reason | None:
        """Why it did not get a whole step; None if it did."""
        state, size = taker.state, taker.size + taker.pending_growth
        step = state.steps.up(size)
        assert step is not None
        limit = self._draft.may_grow(state, self._room)
        units = min((min(step.size, state.most) - size) // state.unit, limit.times)
        if units <= 0:
            return limit.reason
        wanted = units * state.unit
        count = min(wanted, self._nodes.slots(state.shape, self._room).total())
        count -= count % state.unit
        if not count:
            return Reason.NO_ROOM
        whole = count == step.size - size
        if self._room is Room.IDLE and not self._pays(taker, size + count, whole):
            return Reason.NOT_WORTH_A_PAUSE
        self._nodes.place(state.shape, count, self._room)
        self._queues.grow(taker.job.queue, state.unit_vector, count // state.unit)
        self._draft.quotas.use(state.namespace, state.counted, count)
        if self._room is Room.IDLE:
            taker.size += count
        else:
            taker.pending_growth += count
        return None if count == wanted else Reason.NO_ROOM

    def _pays(self, taker: JobDraft, size: int, whole: bool) -> bool:
        """Return whether growing to `size` is worth the pause, if there is one. Who gives to a
        claim does not grow at once: carried out as growth, its pods would stay."""
        if taker.removed or not taker.bound:
            return not taker.removed
        state, job = taker.state, taker.job
        log_speed = state.curve.log_speed
        won = log_speed(size) - log_speed(max(1, job.desired))
        lasts = max(LASTS, self._moves.seconds - state.created) if whole else PART_LASTS
        return won * lasts >= state.pause


class Giver(NamedTuple):
    """A job that may give, and what one step of it comes to."""

    key: LossKey
    state: JobState
    workers: int
    gap: float
    cost: float
    """The loss that another queue's gain must outweigh: more where its own deserves them."""
    lost: float
    """Log(speed) that it loses, as if it were not young."""
    gpus: float
    """The amount that the workers hold together."""
    pause: float
    """Seconds that it stands still for it."""


class OtherJobs:
    """Steps of other jobs. Since a giver stands still anyway, it gives a whole step, and what one
    taker leaves of it goes to the next; who gives to a claim in this plan may give the rest of a
    step at no further pause. Only the giver shrinks now; takers grow when the pods have left.
    """

    by_gain = True

    def __init__(self, moves: Moves) -> None:
        self._moves, self._draft, self._now = moves, moves.draft, moves.draft.now
        self._nodes, self._queues = moves.draft.nodes, moves.draft.queues
        self._jobs = moves.draft.cluster.jobs
        queues = moves.draft.cluster.queues
        self._trading = gaps = {name: gap for name in queues if (gap := self._gap(name))}
        """Queues whose jobs take part."""
        least = min([queues[name].least_loss * gap for name, gap in gaps.items()], default=math.inf)
        self._least = least - 1e-9
        """No gain below this is enough for any of their jobs to give; worths are rounded."""
        self._front: list[Giver] = []
        """The cheapest givers, refused so far: most takers need no others."""
        self._least_lost = math.inf
        """The least that one of them loses a GPU, as if none were young."""
        self._left_over = False
        """Somebody has given, perhaps more than was taken."""
        self._out_of_reach: set[str] = set()
        """Queues whose jobs have too little to gain for any of the givers in front."""

    @fact
    def _losses(self) -> list[LossKey]:
        """A heap of who may give: mostly nobody gains enough."""
        found = [key for name in self._trading for key in self._draft.cluster.queues[name].losses]
        heapq.heapify(found)
        return found

    def may_give_to(self, key: GrowthKey) -> bool:
        """Return whether this job, or one behind it in its growth queue, might get anything."""
        return key.order_key < math.inf or -key.worth >= self._least

    def reaches(self, takers: GrowthQueue) -> bool:
        """Return whether some job may still give to the takers' queue."""
        queue = takers.queue
        return queue in self._trading and (self._left_over or queue not in self._out_of_reach)

    def precedence(self, takers: GrowthQueue, key: GrowthKey) -> Precedence:
        """Return the job in front: by its order key, if there is one, else by gains alone."""
        return 0.0, key

    def give(self, key: str) -> Outcome:
        """Move one step from the jobs that lose least by it, if this job gains enough more."""
        state, drafted = self._jobs[key], self._draft.jobs.get(key)
        size = state.job.desired
        if drafted is not None:
            if drafted.size != size:
                return Outcome.DONE
            size += drafted.pending_growth
        step = state.steps.up(size)
        if state.job.scaler != "volcano" or step is None or size + state.unit > state.most:
            return Outcome.DONE
        wanted = min(step.size, state.most) - size
        if self._left_over and self._take(self._draft.job(key), wanted):
            self._look_again()
            return Outcome.TOOK
        gain, front = step.worth * state.weight, self._front
        if front and gain / state.weight < self._least_lost and state.order_key is None:
            # It gains less than any of them loses, but for its youth, and gets no further.
            first, last, gap = front[0], front[-1], state.policy.rebalance.gap
            if len(front) == TRIES or gain < max(gap, last.gap) * last.key.loss:
                too_little = gain < max(gap, first.gap) * first.key.loss
                # Who comes after it gains no more, and no front of givers would be longer.
                last_one = gain < self._least_lost and len(front) == TRIES and not self._left_over
                return Outcome.NOBODY_TAKES if too_little or last_one else Outcome.DONE
        served = self._serve(state, gain, wanted)
        if served is None and state.order_key is None:
            # Nobody's loss is small enough for it, and no other gains more than it does.
            return Outcome.NOBODY_TAKES
        return Outcome.TOOK if served else Outcome.DONE

    def _gap(self, queue: str) -> float:
        """Return how much more a gain must be than losses in the queue; 0: it takes no part now."""
        rules = self._draft.cluster.policies[queue].rebalance
        last = self._moves.rebalanced.get(queue)
        return rules.gap if last is None or self._now - last >= rules.cooldown else 0.0

    def _giver(self, nth: int) -> Giver | None:
        """The job with the cheapest loss but for `nth` others; None if there are not so many."""
        while len(self._front) <= nth:
            key = self._next_loss()
            if key is None:
                return None
            state, drafted = self._jobs[key.job], self._draft.jobs.get(key.job)
            size = state.job.desired if drafted is None else drafted.size
            count = size - max(state.steps.down(size).size, state.job.min)
            given = [amount * count for amount in state.shape.vector]
            borrows = self._queues.borrows(state.job.queue, given)
            cost = key.loss if borrows else state.worth_by_right(key.loss)
            gap, gpus = state.policy.rebalance.gap, count * state.unit_gpus
            each = key.loss / state.weight
            self._least_lost = min(self._least_lost, each)
            # Who gives to a claim stands still anyway.
            pause = 0.0 if drafted is not None and drafted.removed else state.pause
            self._front.append(Giver(key, state, count, gap, cost, each * gpus, gpus, pause))
        return self._front[nth]

    def _next_loss(self) -> LossKey | None:
        while self._losses:
            found = heapq.heappop(self._losses)
            if self._moves.rests(found.job):
                continue
            giver = self._draft.jobs.get(found.job)
            if giver is None:
                return found
            if giver.size > giver.job.desired or giver.pending_growth:
                # Who has just grown gives nothing.
                continue
            now = loss_key(giver.state, giver.size)
            if now is not None and now > found:
                # It has given to a claim, and would lose more by what is left.
                heapq.heappush(self._losses, now)
            elif now is not None:
                return now
        return None

    def _look_again(self, gave: JobDraft | None = None) -> None:
        """Somebody has taken, from `gave` perhaps: losses may not be what they were."""
        for found in self._front:
            if gave is None or found.key.job != gave.job.key:
                heapq.heappush(self._losses, found.key)
        self._front.clear()
        self._least_lost = math.inf
        self._out_of_reach.clear()
        lower = None if gave is None else loss_key(gave.state, gave.size)
        if lower is not None:
            heapq.heappush(self._losses, lower)

    def _serve(self, state: JobState, gain: float, wanted: int) -> bool | None:
        """Make room for a job's next step; False if no giver can, None if all lose too much."""
        by_order, front = state.order_key is not None, self._front
        queue, gap, reached = state.job.queue, state.policy.rebalance.gap, False
        alone, pause, created = gain / state.weight, state.pause, state.created
        for nth in range(TRIES):
            giver = front[nth] if nth < len(front) else self._giver(nth)
            if giver is None:
                return False if nth else None
            most = gain / max(gap, giver.gap)
            if not by_order and most < giver.key.loss:
                return False if nth else None
            mine = giver.state.job.queue == queue
            may = self._goes_before(state, giver) if by_order else mine or most >= giver.cost
            reached = reached or may or mine
            if not may or giver.state is state:
                continue
            lasts = max(LASTS, self._moves.seconds - max(created, giver.state.created))
            if (alone * giver.gpus - giver.lost) * lasts < pause + giver.pause:
                continue
            donor, taker = self._draft.job(giver.key.job), self._draft.job(state.job.key)
            for leaving in self._choices(donor, taker, giver.workers):
                if self._place(taker, donor, leaving, wanted):
                    self._look_again(donor)
                    return True
        if not by_order and not reached:
            self._out_of_reach.add(queue)
        return False

    @staticmethod
    def _goes_before(taker: JobState, giver: Giver) -> bool:
        mine, its = taker.order_key, giver.state.order_key
        same = taker.job.queue == giver.state.job.queue
        return same and mine is not None and its is not None and mine < its

    def _choices(self, giver: JobDraft, taker: JobDraft, count: int) -> list[list[Pod]]:
        """Sets of the giver's pods to try: the latest, then those that empty most of a node."""
        ordered = list(giver.leavers())
        if len(ordered) < count:
            return []
        choices = [ordered[:count]]
        if taker.state.shape.vector != giver.state.shape.vector:
            on_node = Counter(pod.node for pod in ordered)
            by_node = sorted(ordered, key=lambda pod: (-on_node[pod.node], pod.node or ""))
            choices.append(by_node[:count])
        return choices

    def _place(self, taker: JobDraft, giver: JobDraft, leaving: list[Pod], wanted: int) -> bool:
        mark = self._draft.journal.mark()
        self._draft.release(giver, leaving)
        if not self._take(taker, wanted):
            self._draft.journal.rollback(mark)
            return False
        giver.give(leaving, taker.job.key)
        self._left_over = True
        return True

    def _take(self, taker: JobDraft, wanted: int) -> bool:
        """Promise the taker up to so many workers' releasing room; whole units."""
        state, room = taker.state, Room.RELEASING
        wanted = min(wanted, self._draft.may_grow(state, room).times * state.unit)
        count = min(wanted, self._nodes.slots(state.shape, room).total())
        if count <= 0 or count % state.unit:
            return False
        self._nodes.place(state.shape, count, room)
        self._queues.use(taker.job.queue, state.shape.vector, count)
        self._draft.quotas.use(state.namespace, state.counted, count)
        taker.pending_growth += count
        return True
