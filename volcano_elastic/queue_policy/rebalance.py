"""GPUs move from the jobs that lose least by it to those that gain most.

A move is made when the gain is at least the policy's `gap` times the loss, and pays back the pauses
of both jobs: what both together gain in log(speed) over `horizon` is more than the time both stand
still. Since the giver stands still anyway, it gives a whole step, and what one taker leaves of it
goes to the next; and who gives to a claim in this plan may give the rest of a step at no further
pause. Only the giver shrinks now; the takers grow when the pods have left.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from volcano_elastic.api.queue_policy import Order
from volcano_elastic.queue_policy.growth import Candidates, horizon
from volcano_elastic.queue_policy.lineup import Offer, entry, offer
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.ranking import Line
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing

TRIES = 8
"""Givers looked at for one taker: with pods of several sizes few of the first may help."""


class Giver(NamedTuple):
    """Who may give, and what one step of it comes to."""

    offer: Offer
    loss: float
    standing: Standing
    workers: int
    borrowed: bool
    """Its queue holds them beyond its own right."""


class Rebalance:
    def __init__(
        self,
        lines: list[Candidates],
        offers: list[Offer],
        trades: Callable[[Standing], bool],
        nodes: NodeRoom,
        queues: QueueRoom,
        now: datetime,
    ) -> None:
        """`lines`: who would grow further; `offers`: who may give, the cheapest first; `trades`:
        whether a job may take part at all, asked only of those that come to the front."""
        self._lines, self._trades = lines, trades
        self._nodes, self._queues, self._now = nodes, queues, now
        self._offers = Line(offers)
        self._front: list[Giver] = []
        """The cheapest offers, looked at already and refused so far: of most takers nothing else
        need be known."""
        self._left = False
        """Somebody has given, perhaps more than was taken."""

    def run(self) -> None:
        heads = [(*head[:4], i) for i, line in enumerate(self._lines) if (head := line.head())]
        heapq.heapify(heads)
        while heads:
            i = heapq.heappop(heads)[-1]
            line = self._lines[i]
            taker = line.pop()[-1]
            served = None
            if taker.size == taker.job.desired and self._trades(taker):
                served = self._serve(taker)
                if served is None and taker.policy.surplus.order is not Order.PRIORITY:
                    # Nobody's loss is small enough for it, and no other gains more than it does.
                    return
            place = entry(taker) if served else None
            if place is not None:
                line.push(place)
            head = line.head()
            if head is not None:
                heapq.heappush(heads, (*head[:4], i))

    def _giver(self, turn: int) -> Giver | None:
        """Who has the cheapest offer but `turn`; None if there are not so many."""
        while len(self._front) <= turn:
            found = self._next_offer()
            if found is None:
                return None
            giver = found[-1]
            count = giver.size - max(giver.ladder.down(giver.size).size, giver.job.min)
            given = [amount * count for amount in giver.shape.vector]
            borrowed = self._queues.borrows(giver.job.queue, given)
            self._front.append(Giver(found, found[0], giver, count, borrowed))
        return self._front[turn]

    def _next_offer(self) -> Offer | None:
        while (found := self._offers.head()) is not None:
            self._offers.pop()
            giver = found[-1]
            if giver.size > giver.job.desired or giver.hoped or not self._trades(giver):
                # Who has just grown gives nothing.
                continue
            now = offer(giver)
            if now is not None and now > found:
                # It has given to a claim, and would lose more by what is left.
                self._offers.push(now)
            elif now is not None:
                return now
        return None

    def _look_again(self, gave: Standing | None = None) -> None:
        """Somebody has taken, from `gave` perhaps: offers may not be what they were."""
        for found in self._front:
            if found.standing is not gave:
                self._offers.push(found.offer)
        self._front.clear()
        lower = None if gave is None else offer(gave)
        if lower is not None:
            self._offers.push(lower)

    def _serve(self, taker: Standing) -> bool | None:
        """Have somebody make room for the taker's next step; False if none of those asked can;
        None if everybody's loss is too large."""
        size, most = taker.size + taker.hoped, taker.most
        rung = taker.ladder.up(size)
        if rung is None or size + taker.unit > most:
            return False
        gain = rung.worth * taker.weight
        wanted = min(rung.size, most) - size
        if self._left and self._take(taker, wanted):
            self._look_again()
            return True
        rules = taker.policy
        ranked = rules.surplus.order is Order.PRIORITY
        for turn in range(TRIES):
            giver = self._giver(turn)
            if giver is None:
                return False if turn else None
            gap = max(rules.rebalance.gap, giver.standing.policy.rebalance.gap)
            if not ranked and gain < gap * giver.loss:
                return False if turn else None
            if self._may(taker, giver, ranked) and self._move(taker, giver, gain, wanted):
                self._look_again(giver.standing)
                return True
        return False

    def _may(self, taker: Standing, giver: Giver, ranked: bool) -> bool:
        mine, its = taker.job, giver.standing.job
        if mine.queue == its.queue:
            return mine is not its and (not ranked or mine.priority > its.priority)
        # A queue's own right is not for others to weigh.
        return not ranked and giver.borrowed

    def _move(self, taker: Standing, found: Giver, gain: float, wanted: int) -> bool:
        giver, count = found.standing, found.workers
        won = (gain / taker.weight - found.loss / giver.weight) * count * giver.unit_gpus
        lasts = horizon(self._now, taker.job, giver.job)
        pauses = taker.job.pause if giver.removed else taker.job.pause + giver.job.pause
        if won * lasts < pauses.total_seconds():
            return False
        return any(
            self._place(taker, giver, leaving, wanted)
            for leaving in self._choices(giver, taker, count)
        )

    def _choices(self, giver: Standing, taker: Standing, count: int) -> list[list[Pod]]:
        """Sets of the giver's pods to try: the latest, then those that empty most of a node."""
        ordered = list(giver.leavers())
        if len(ordered) < count:
            return []
        choices = [ordered[:count]]
        if taker.shape.vector != giver.shape.vector:
            on_node = Counter(pod.node for pod in ordered)
            by_node = sorted(ordered, key=lambda pod: (-on_node[pod.node], pod.node or ""))
            choices.append(by_node[:count])
        return choices

    def _place(self, taker: Standing, giver: Standing, leaving: list[Pod], wanted: int) -> bool:
        nodes, queues = self._nodes, self._queues
        mark = nodes.mark()
        for pod in leaving:
            n = nodes.index(pod.node)
            if n is not None:
                nodes.leave(n, giver.shape.vector)
        queues.use(giver.job.queue, giver.shape.vector, -len(leaving))
        if not self._take(taker, wanted):
            queues.use(giver.job.queue, giver.shape.vector, len(leaving))
            nodes.rollback(mark)
            return False
        giver.give(leaving, taker.job.key)
        self._left = True
        return True

    def _take(self, taker: Standing, wanted: int) -> bool:
        """Promise the taker up to so many workers' room that is coming; whole units."""
        nodes, queues = self._nodes, self._queues
        often, _ = queues.may_grow(taker.job.queue, taker.unit_vector)
        count = min(wanted, often * taker.unit)
        mark = nodes.mark()
        placed = nodes.place(taker.shape, count, Room.COMING) if count > 0 else []
        if not placed or len(placed) % taker.unit:
            nodes.rollback(mark)
            return False
        queues.use(taker.job.queue, taker.shape.vector, len(placed))
        taker.hope(len(placed))
        return True
