"""Create-last: idle room that nobody needs goes to the jobs that gain most from it.

Queues below their deserved come first, the one with the smallest share of it in front; then all
queues are one pool. Within a queue the policy's order decides; between queues what the next step
is worth (see `ladder`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from datetime import datetime

from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.lineup import Entry, Lineup, end, entry
from volcano_elastic.queue_policy.queue_room import QueueRoom
from volcano_elastic.queue_policy.ranking import Line
from volcano_elastic.queue_policy.room import NodeRoom, Room
from volcano_elastic.queue_policy.snapshot import Job
from volcano_elastic.queue_policy.standing import Standing

LASTS = 1800.0
"""Seconds that any change is expected to last, however young the job."""

PART_LASTS = 120.0
"""The same for a part of a step: the rest of it will stop the job again."""

Turn = tuple[bool, float, float, float, float, str, int]
"""Beyond its deserved, share of it, then as in `Entry`; the line."""


class Candidates(Line[Entry]):
    """Who may grow, of one queue and shape."""

    def __init__(self, queue: str, shape: Shape, entries: Sequence[Entry] = ()) -> None:
        super().__init__(entries)
        self.queue, self.shape = queue, shape


class Growth:
    """Gives idle room away, then promises coming room, so that rebalancing doesn't ask for more
    than what is on its way already."""

    def __init__(
        self,
        lineup: Lineup,
        resting: Collection[str],
        nodes: NodeRoom,
        queues: QueueRoom,
        now: datetime,
    ) -> None:
        """`resting`: keys of jobs that stay as they are though they stand in line."""
        self._nodes, self._queues, self._now = nodes, queues, now
        self._resting = resting
        self.lines = [
            Candidates(queue, shape, ranking.entries)
            for (queue, shape), ranking in lineup.lines.items()
        ]
        self.why: dict[str, Reason] = {}
        """Why those that had a turn grow no further."""

    def welcome(self, standing: Standing) -> None:
        """A job that has room for its minimum and has not started stands in line like those that
        run: what it gets now costs it no pause."""
        place = entry(standing)
        if place is None:
            return
        queue, shape = standing.job.queue, standing.shape
        for line in self.lines:
            if line.queue == queue and line.shape is shape:
                break
        else:
            line = Candidates(queue, shape)
            self.lines.append(line)
        line.push(place)

    def run(self) -> None:
        for room in (Room.IDLE, Room.COMING):
            self._deal(room)

    def _deal(self, room: Room) -> None:
        turns = [
            turn
            for number, line in enumerate(self.lines)
            # Of most lines of a full cluster nothing more need be known.
            if self._nodes.slots(line.shape, room).total() and (turn := self._turn(number))
        ]
        heapq.heapify(turns)
        unplaced: list[tuple[Candidates, Entry]] = []
        while turns:
            turn = heapq.heappop(turns)
            line = self.lines[turn[-1]]
            now = self._turn(turn[-1])
            if now is None or not self._nodes.slots(line.shape, room).total():
                continue
            if now > turn:
                # Its share has grown meanwhile: it stands in line again.
                heapq.heappush(turns, now)
                continue
            standing = line.pop()[-1]
            if standing.job.key not in self._resting:
                more = self._step(standing, room)
                place, ended = entry(standing), end(standing)
                if place is None and ended is not None:
                    # What is only on its way is no room yet.
                    self.why[standing.job.key] = Reason.NO_ROOM if standing.hoped else ended
                elif place is not None and more:
                    line.push(place)
                elif place is not None and self.why[standing.job.key] is Reason.NO_ROOM:
                    unplaced.append((line, place))
            again = self._turn(turn[-1])
            if again is not None:
                heapq.heappush(turns, again)
        for line, place in unplaced:
            line.push(place)

    def _turn(self, number: int) -> Turn | None:
        line = self.lines[number]
        head = line.head()
        if head is None:
            return None
        first, worth, created, key, standing = head
        beyond = self._queues.beyond_deserved(line.queue, standing.unit_vector)
        share = 0.0 if beyond else self._queues.share(line.queue)
        return (beyond, share, first, worth, created, key, number)

    def _step(self, standing: Standing, room: Room) -> bool:
        """Grow by the next step, or by as much of it as there is room for; False if that ends
        it, and then `why` says why."""
        size, key = standing.size + standing.hoped, standing.job.key
        rung = standing.ladder.up(size)
        assert rung is not None
        units = (min(rung.size, standing.most) - size) // standing.unit
        queue, vector = standing.job.queue, standing.unit_vector
        often, why = self._queues.may_grow(queue, vector)
        units = min(units, often)
        if units <= 0:
            self.why[key] = why
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
        if not placed:
            nodes.rollback(mark)
            self.why[key] = Reason.NO_ROOM
            return False
        whole = len(placed) == rung.size - size
        if room is Room.IDLE and not self._pays(standing, size + len(placed), whole):
            nodes.rollback(mark)
            self.why[key] = Reason.NOT_WORTH_A_PAUSE
            return False
        self._queues.grow(queue, vector, len(placed) // standing.unit)
        if room is Room.IDLE:
            standing.grow(len(placed))
        else:
            standing.hope(len(placed))
        if len(placed) < wanted:
            self.why[key] = Reason.NO_ROOM
        return len(placed) == wanted

    def _pays(self, standing: Standing, size: int, whole: bool) -> bool:
        """Whether growing to `size` is worth the pause, if there is one."""
        if not standing.bound:
            return True
        log_speed = standing.curve.log_speed
        won = log_speed(size) - log_speed(max(1, standing.job.desired))
        lasts = horizon(self._now, standing.job) if whole else PART_LASTS
        return won * lasts >= standing.job.pause.total_seconds()


def horizon(now: datetime, *jobs: Job) -> float:
    """Seconds for which a change of these jobs' sizes is expected to last.

    For how long a job goes on its age is the best guess there is; of a young job it says little.
    """
    return max(LASTS, (now - max(job.created for job in jobs)).total_seconds())
