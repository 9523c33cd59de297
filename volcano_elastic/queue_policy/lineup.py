"""Who may grow and who may give, in order, kept from plan to plan.

Jobs whose pods all run stand in line by what their next step is worth (to grow), and by what their
last one is worth (to give). A job that is cooling down stands aside until its time comes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from datetime import datetime
from typing import Any

from volcano_elastic.api.queue_policy import Order
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.standing import Standing

FEW = 16
"""Up to so many changes a line is mended; after more it is sorted anew."""

Entry = tuple[float, float, float, str, Standing]
"""Negative priority under order Priority, negative worth, creation, key, job."""
Offer = tuple[float, str, Standing]
"""What giving one step loses, key, job."""


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
        return Reason.AT_MAX
    return Reason.INEFFICIENT if standing.ladder.up(size) is None else None


def offer(standing: Standing) -> Offer | None:
    """What one step down would lose; None at the minimum."""
    if standing.size - standing.unit < standing.job.min:
        return None
    rung = standing.ladder.down(standing.size)
    return (round(rung.worth * standing.weight, 12), standing.job.key, standing)


class Lineup:
    def __init__(self) -> None:
        self.lines: dict[tuple[str, Shape], list[Entry]] = {}
        """Who may grow, by queue and shape."""
        self.offers: list[Offer] = []
        """Who may give."""
        self._takers: dict[str, tuple[tuple[str, Shape], Entry]] = {}
        self._givers: dict[str, Offer] = {}
        self._aside: dict[str, tuple[Standing, bool, bool]] = {}
        self._ready: list[tuple[datetime, str, int]] = []
        # What has changed since `settle`: by line, or for None the offers.
        self._come: dict[tuple[str, Shape] | None, list[Any]] = {}
        self._gone: dict[tuple[str, Shape] | None, list[Any]] = {}

    def put(self, standing: Standing, now: datetime, *, takes: bool, gives: bool) -> None:
        key, ready = standing.job.key, standing.ready
        if ready is not None and ready > now:
            self._aside[key] = (standing, takes, gives)
            heapq.heappush(self._ready, (ready, key, id(standing)))
            return
        if takes:
            place = entry(standing)
            if place is not None:
                line = (standing.job.queue, standing.shape)
                self._takers[key] = (line, place)
                self._come.setdefault(line, []).append(place)
        if gives:
            given = offer(standing)
            if given is not None:
                self._givers[key] = given
                self._come.setdefault(None, []).append(given)

    def remove(self, key: str) -> None:
        self._aside.pop(key, None)
        taker = self._takers.pop(key, None)
        if taker is not None:
            self._gone.setdefault(taker[0], []).append(taker[1])
        given = self._givers.pop(key, None)
        if given is not None:
            self._gone.setdefault(None, []).append(given)

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
        for line in self._gone.keys() | self._come.keys():
            entries = self.offers if line is None else self.lines.setdefault(line, [])
            gone, come = self._gone.get(line, []), self._come.get(line, [])
            if len(gone) + len(come) < FEW:
                for found in gone:
                    at = bisect_left(entries, found[:-1], key=_but_standing)
                    if at < len(entries) and entries[at] is found:
                        del entries[at]
                    else:
                        # It came and went since the last time.
                        come = [other for other in come if other is not found]
                for found in come:
                    insort(entries, found, key=_but_standing)
            else:
                out = set(map(id, gone))
                entries[:] = [found for found in (*entries, *come) if id(found) not in out]
                entries.sort(key=_but_standing)
            if line is not None and not entries:
                del self.lines[line]
        self._gone.clear()
        self._come.clear()


def _but_standing(found: tuple[Any, ...]) -> tuple[Any, ...]:
    return found[:-1]
