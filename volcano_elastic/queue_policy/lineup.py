"""Who may grow and who may give, in order, kept from plan to plan.

Jobs whose pods all run stand in line by what their next step is worth (to grow), and by what their
last one is worth (to give). A job that is cooling down stands aside until its time comes.
"""

from __future__ import annotations

import heapq
from datetime import datetime
from typing import Any, TypeVar

from volcano_elastic.api.queue_policy import Order
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.ranking import Ranking
from volcano_elastic.queue_policy.standing import Standing

Entry = tuple[float, float, float, str, Standing]
"""Negative priority under order Priority, negative worth, creation, key, job."""
Offer = tuple[float, str, Standing]
"""What giving one step loses, key, job."""
_E = TypeVar("_E", Entry, Offer)


def entry(standing: Standing) -> Entry | None:
    """Its place in line for the step after the size planned so far; None if it is at an end."""
    size = standing.size + standing.hoped
    if size + standing.unit > standing.most:
        return None
    rung = standing.ladder.up(size)
    if rung is None:
        return None
    job = standing.job
    first = float(-job.priority) if standing.policy.surplus.order is Order.PRIORITY else 0.0
    # Rounded, so that ties are ties on every machine.
    worth = round(rung.worth * standing.weight, 12)
    return (first, -worth, job.created.timestamp(), job.key, standing)


def end(standing: Standing) -> Reason | None:
    """Why a job has no next step; None if it has one."""
    size = standing.size + standing.hoped
    if size + standing.unit > standing.most:
        lasting = size + standing.unit > standing.cap
        return Reason.AT_MAX if lasting else Reason.MAX_STEP_TOO_SMALL
    return Reason.INEFFICIENT if standing.ladder.up(size) is None else None


def offer(standing: Standing) -> Offer | None:
    """What one step down would lose; None at the minimum."""
    if standing.size - standing.unit < standing.job.min:
        return None
    rung = standing.ladder.down(standing.size)
    return (round(rung.worth * standing.weight, 12), standing.job.key, standing)


class Lineup:
    def __init__(self) -> None:
        self.lines: dict[tuple[str, Shape], Ranking[Entry]] = {}
        """Who may grow, by queue and shape."""
        self.offers: Ranking[Offer] = Ranking()
        """Who may give."""
        self._takers: dict[str, Entry] = {}
        self._givers: dict[str, Offer] = {}
        self._aside: dict[str, tuple[Standing, bool, bool]] = {}
        self._ready: list[tuple[datetime, str, int]] = []
        self._changed: dict[int, Ranking[Any]] = {}
        """Since `settle`."""

    def put(self, standing: Standing, now: datetime, *, takes: bool, gives: bool) -> None:
        key, ready = standing.job.key, standing.ready
        if ready is not None and ready > now:
            self._aside[key] = (standing, takes, gives)
            heapq.heappush(self._ready, (ready, key, id(standing)))
            return
        if takes:
            place = entry(standing)
            if place is not None:
                kind = (standing.job.queue, standing.shape)
                line = self.lines.get(kind)
                if line is None:
                    line = self.lines[kind] = Ranking()
                self._takers[key] = place
                self._change(line).put(place)
        if gives:
            given = offer(standing)
            if given is not None:
                self._givers[key] = given
                self._change(self.offers).put(given)

    def remove(self, key: str) -> None:
        self._aside.pop(key, None)
        taker = self._takers.pop(key, None)
        if taker is not None:
            standing = taker[-1]
            self._change(self.lines[standing.job.queue, standing.shape]).remove(taker)
        given = self._givers.pop(key, None)
        if given is not None:
            self._change(self.offers).remove(given)

    def _change(self, ranking: Ranking[_E]) -> Ranking[_E]:
        self._changed[id(ranking)] = ranking
        return ranking

    def advance(self, now: datetime) -> list[Standing]:
        """Those that have cooled down meanwhile, and now stand in line."""
        found: list[Standing] = []
        while self._ready and self._ready[0][0] <= now:
            _, key, number = heapq.heappop(self._ready)
            aside = self._aside.get(key)
            if aside is not None and id(aside[0]) == number:
                del self._aside[key]
                self.put(aside[0], now, takes=aside[1], gives=aside[2])
                found.append(aside[0])
        return found

    def settle(self) -> None:
        """Bring the lines up to date with what was put and removed."""
        for ranking in self._changed.values():
            ranking.settle()
        for line in [line for line, ranking in self.lines.items() if not ranking.entries]:
            del self.lines[line]
        self._changed.clear()
