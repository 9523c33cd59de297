"""Create-last: idle room that nobody needs goes to the jobs that gain most from it.

Queues below their deserved come first, the one with the smallest share of it in front; then all
queues are one pool. Within a queue the policy's order decides; between queues what the next step
is worth (see `ladder`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from volcano_elastic.api.queue_policy import Order
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Job
from volcano_elastic.queue_policy.standing import Standing

MOST_LAST = 1800.0
"""Seconds that any change is expected to last, however young the job."""

Entry = tuple[float, float, float, str, Standing]
"""Negative priority under order Priority, negative worth, creation, key, job."""


@dataclass(slots=True)
class Line:
    """The candidates of one queue, who goes first first."""

    queue: str
    heap: list[Entry] = field(default_factory=list)


class Growth:
    """Gives idle room away, then promises coming room, so that rebalancing doesn't ask for more
    than what is on its way already."""

    def __init__(
        self, candidates: Iterable[Standing], nodes: NodeRoom, queues: QueueRoom, now: datetime
    ) -> None:
        self._nodes, self._queues = nodes, queues
        self._now = now
        self._candidates = list(candidates)
        self.hungry: list[Standing] = []
        """Who would take more, and found no room for it on the nodes."""

    def run(self) -> None:
        self._deal(Room.IDLE)
        self._candidates, self.hungry = self.hungry, []
        if any(self._room(s, Room.COMING) for s in self._candidates):
            self._deal(Room.COMING)
        else:
            self.hungry = self._candidates

    def _room(self, standing: Standing, room: Room) -> bool:
        return self._nodes.slots(standing.shape, room).total() >= standing.unit

    def _deal(self, room: Room) -> None:
        lines: dict[str, Line] = {}
        for standing in self._candidates:
            entry = self.entry(standing)
            if entry is None:
                continue
            # Most jobs of a full cluster end here.
            if not self._room(standing, room):
                standing.why_not_more = Reason.NO_ROOM
                self.hungry.append(standing)
                continue
            line = lines.setdefault(standing.job.queue, Line(standing.job.queue))
            line.heap.append(entry)
        order: list[tuple[bool, float, float, str]] = []
        for line in lines.values():
            heapq.heapify(line.heap)
            order.append(self._turn(line))
        heapq.heapify(order)
        while order:
            turn = heapq.heappop(order)
            line = lines[turn[3]]
            now = self._turn(line)
            if now > turn:
                # Its share has grown meanwhile: it stands in line again.
                heapq.heappush(order, now)
                continue
            standing = heapq.heappop(line.heap)[-1]
            if self._step(standing, room):
                entry = self.entry(standing)
                if entry is not None:
                    heapq.heappush(line.heap, entry)
            if line.heap:
                heapq.heappush(order, self._turn(line))

    def _turn(self, line: Line) -> tuple[bool, float, float, str]:
        _, worth, _, _, standing = line.heap[0]
        vector = standing.unit_vector
        beyond = self._queues.beyond_deserved(line.queue, vector)
        share = 0.0 if beyond else self._queues.share(line.queue)
        return (beyond, share, worth, line.queue)

    @staticmethod
    def entry(standing: Standing) -> Entry | None:
        """None if the job shall not grow further; `why_not_more` says why."""
        size = standing.size + standing.hoped
        if size + standing.unit > standing.most:
            standing.why_not_more = Reason.AT_MAX
            return None
        rung = standing.ladder.up(size)
        if rung is None:
            standing.why_not_more = Reason.INEFFICIENT
            return None
        # Rounded, so that ties are ties on every machine.
        worth = round(rung.worth * standing.weight, 12)
        first = (
            0.0 if standing.policy.surplus.order is not Order.PRIORITY else -standing.job.priority
        )
        return (first, -worth, standing.job.created.timestamp(), standing.job.key, standing)

    def _step(self, standing: Standing, room: Room) -> bool:
        """Grow by the next step, or by as much of it as there is room for."""
        size = standing.size + standing.hoped
        rung = standing.ladder.up(size)
        assert rung is not None
        units = (min(rung.size, standing.most) - size) // standing.unit
        queue, vector = standing.job.queue, standing.unit_vector
        often, why = self._queues.may_grow(queue, vector)
        units = min(units, often)
        if units <= 0:
            standing.why_not_more = why
            return False
        nodes = self._nodes
        mark = nodes.mark()
        wanted = units * standing.unit
        placed = nodes.place(standing.shape, wanted, room)
        extra = len(placed) % standing.unit
        if extra:
            # Whole units only, on the nodes that a smaller wish would have got.
            nodes.rollback(mark)
            placed = nodes.place(standing.shape, len(placed) - extra, room)
        if placed and room is Room.IDLE and not self._pays(standing, size + len(placed)):
            nodes.rollback(mark)
            standing.why_not_more = Reason.NOT_WORTH_A_PAUSE
            return False
        if not placed:
            nodes.rollback(mark)
            standing.why_not_more = Reason.NO_ROOM
            self.hungry.append(standing)
            return False
        self._queues.grow(queue, vector, len(placed) // standing.unit)
        if room is Room.IDLE:
            standing.size += len(placed)
        else:
            standing.hoped += len(placed)
        if len(placed) < wanted:
            standing.why_not_more = Reason.NO_ROOM
            self.hungry.append(standing)
            return False
        return True

    def _pays(self, standing: Standing, size: int) -> bool:
        """Whether growing to `size` is worth the pause."""
        log_speed = standing.curve.log_speed
        won = log_speed(size) - log_speed(max(1, standing.job.desired))
        return won * horizon(self._now, standing.job) >= standing.job.pause.total_seconds()


def horizon(now: datetime, *jobs: Job) -> float:
    """Seconds for which a change of these jobs' sizes is expected to last.

    For how long a job goes on its age is the best guess there is; of a young job it says little.
    """
    return max(MOST_LAST, (now - max(job.created for job in jobs)).total_seconds())
