"""GPUs move from the jobs that lose least by it to those that gain most.

A move is made when the gain is at least the policy's `gap` times the loss, and pays back the pauses
of both jobs: what both together gain in log(speed) over `horizon` is more than the time both stand
still. Only the giver shrinks now; the taker grows when the pods have left.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from volcano_elastic.api.queue_policy import Order
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.growth import horizon
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Pod
from volcano_elastic.queue_policy.standing import Standing, leave_order

TRIES = 8
"""Givers looked at for one taker: with pods of several sizes few of the first may help."""


class Rebalance:
    def __init__(
        self,
        givers: Iterable[Standing],
        takers: Iterable[Standing],
        nodes: NodeRoom,
        queues: QueueRoom,
        now: datetime,
    ) -> None:
        self._nodes, self._queues, self._now = nodes, queues, now
        self._givers = [
            (round(loss, 12), giver.job.key, giver)
            for giver in givers
            if (loss := self._loss(giver)) is not None
        ]
        heapq.heapify(self._givers)
        self._takers = [
            (-round(gain, 12), taker.job.created.timestamp(), taker.job.key, taker)
            for taker in takers
            if (gain := self._gain(taker)) is not None
        ]
        heapq.heapify(self._takers)

    def run(self) -> None:
        while self._takers and self._givers:
            *_, taker = heapq.heappop(self._takers)
            if self._serve(taker):
                gain = self._gain(taker)
                if gain is not None:
                    entry = (-round(gain, 12), taker.job.created.timestamp(), taker.job.key, taker)
                    heapq.heappush(self._takers, entry)

    def _gain(self, taker: Standing) -> float | None:
        """Weighted log(speed) per GPU of its next step; None if it takes no more."""
        size = taker.size + taker.hoped
        if size + taker.unit > taker.most:
            return None
        rung = taker.ladder.up(size)
        return None if rung is None else rung.worth * taker.weight

    def _loss(self, giver: Standing) -> float | None:
        rung = giver.ladder.down(giver.size)
        if self._lowered(giver) >= giver.size:
            return None
        return rung.worth * giver.weight

    @staticmethod
    def _lowered(giver: Standing) -> int:
        return max(giver.ladder.down(giver.size).size, giver.job.min)

    def _serve(self, taker: Standing) -> bool:
        """Have somebody make room for the taker's next step; False if nobody can."""
        gain = self._gain(taker)
        assert gain is not None
        aside: list[tuple[float, str, Standing]] = []
        served = False
        while self._givers and len(aside) < TRIES and not served:
            loss, key, giver = heapq.heappop(self._givers)
            gap = max(taker.policy.rebalance.gap, giver.policy.rebalance.gap)
            if taker.policy.surplus.order is not Order.PRIORITY and gain < gap * loss:
                heapq.heappush(self._givers, (loss, key, giver))
                break
            if giver is not taker and self._may(taker, giver, gap):
                served = self._move(taker, giver, gain, loss)
            if served:
                lower = self._loss(giver)
                if lower is not None:
                    heapq.heappush(self._givers, (round(lower, 12), key, giver))
            else:
                aside.append((loss, key, giver))
        for entry in aside:
            heapq.heappush(self._givers, entry)
        return served

    def _may(self, taker: Standing, giver: Standing, gap: float) -> bool:
        if taker.job.queue == giver.job.queue:
            if taker.policy.surplus.order is Order.PRIORITY:
                return taker.job.priority > giver.job.priority
            return True
        # A queue's own right is not for others to weigh.
        return self._queues.borrows(giver.job.queue, giver.unit_vector) and (
            taker.policy.surplus.order is not Order.PRIORITY
        )

    def _move(self, taker: Standing, giver: Standing, gain: float, loss: float) -> bool:
        lowered, size = self._lowered(giver), taker.size + taker.hoped
        rung = taker.ladder.up(size)
        assert rung is not None
        wanted = min(rung.size, taker.most) - size
        worth = wanted * taker.unit_gpus
        pods = -(-int(worth * 1000) // int(giver.unit_gpus * 1000))
        count = min(giver.size - lowered, -(-pods // giver.unit) * giver.unit)
        won = (gain / taker.weight - loss / giver.weight) * count * giver.unit_gpus
        lasts = horizon(self._now, taker.job, giver.job)
        if won * lasts < (taker.job.pause + giver.job.pause).total_seconds():
            return False
        for leaving in self._choices(giver, taker, count):
            if self._place(taker, giver, leaving, wanted):
                giver.reason = Reason.REBALANCED
                giver.served[taker.job.key] = None
                return True
        return False

    def _choices(self, giver: Standing, taker: Standing, count: int) -> list[list[Pod]]:
        """Sets of the giver's pods to try: the latest, then those that empty most of a node."""
        ordered = leave_order(giver.bound.values())
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
        often, _ = queues.may_grow(taker.job.queue, taker.unit_vector)
        count = min(wanted, often * taker.unit)
        placed = nodes.place(taker.shape, count, Room.COMING) if count > 0 else []
        extra = len(placed) % taker.unit
        if not placed or extra:
            queues.use(giver.job.queue, giver.shape.vector, len(leaving))
            nodes.rollback(mark)
            return False
        queues.use(taker.job.queue, taker.shape.vector, len(placed))
        taker.hoped += len(placed)
        giver.size -= len(leaving)
        for pod in leaving:
            giver.bound.pop(pod.key)
            giver.removed.append(pod)
        return True
