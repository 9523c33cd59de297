"""Who may grow and who may give, in order, kept from plan to plan.

Jobs whose pods all run stand in line by what their next step is worth (to grow), and by what their
last one is worth (to give). A job that is cooling down stands aside until its time comes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from datetime import datetime

from volcano_elastic.api.queue_policy import Order
from volcano_elastic.queue_policy.fit import Shape
from volcano_elastic.queue_policy.standing import Standing

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
        self.cooling: set[str] = set()
        self._takers: dict[str, tuple[tuple[str, Shape], Entry]] = {}
        self._givers: dict[str, Offer] = {}
        self._aside: dict[str, tuple[Standing, bool, bool]] = {}
        self._ready: list[tuple[datetime, str, Standing]] = []

    def put(
        self, standing: Standing, ready: datetime | None, now: datetime, *, takes: bool, gives: bool
    ) -> None:
        """ready: when it has cooled down; None: long ago."""
        key = standing.job.key
        if ready is not None and ready > now:
            self.cooling.add(key)
            self._aside[key] = (standing, takes, gives)
            heapq.heappush(self._ready, (ready, key, standing))
            return
        if takes:
            place = entry(standing)
            if place is not None:
                line = (standing.job.queue, standing.shape)
                self._takers[key] = (line, place)
                insort(self.lines.setdefault(line, []), place)
        if gives:
            given = offer(standing)
            if given is not None:
                self._givers[key] = given
                insort(self.offers, given)

    def remove(self, key: str) -> None:
        self.cooling.discard(key)
        self._aside.pop(key, None)
        taker = self._takers.pop(key, None)
        if taker is not None:
            line = self.lines[taker[0]]
            del line[bisect_left(line, taker[1])]
            if not line:
                del self.lines[taker[0]]
        given = self._givers.pop(key, None)
        if given is not None:
            del self.offers[bisect_left(self.offers, given)]

    def advance(self, now: datetime) -> list[Standing]:
        """Those that have cooled down since."""
        found: list[Standing] = []
        while self._ready and self._ready[0][0] <= now:
            _, key, standing = heapq.heappop(self._ready)
            aside = self._aside.get(key)
            if aside is not None and aside[0] is standing:
                self.remove(key)
                self.put(standing, None, now, takes=aside[1], gives=aside[2])
                found.append(standing)
        return found
