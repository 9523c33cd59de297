"""Learns from past jobs: how long jobs like one last, and what else arrives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property

from volcano_elastic.cluster_state.speed import amdahl
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.survival import Survival, draw_unknown, kaplan_meier

_NEWEST = 300
"""Jobs of a kind that are looked at: habits change."""
_ENOUGH = 12
"""Ends beyond a job's age that make a kind worth asking."""
SPAN = timedelta(hours=1)
"""Jobs of one kind that were created within it come from one burst, and last alike."""

Kind = tuple[Hashable, ...]


def kinds(record: JobRecord) -> tuple[Kind, ...]:
    """Return the kinds that a job is of, the narrowest first."""
    who = (record.user, record.queue)
    return ((*who, record.min, record.each), who, (record.queue,), ())


def gpus(record: JobRecord, size: float) -> float:
    return max(1.0, size * record.each / 1000)


def length(record: JobRecord, now: datetime) -> float:
    """Return the seconds that the job has run, or would have, at its minimum size."""
    begun = record.started or record.created
    ran = ((record.ended or now) - begun).total_seconds()
    least = gpus(record, record.min)
    most = gpus(record, record.max)
    used = record.hours * 3600
    # It has waited, or was restarted since: neither is running.
    ran = max(0.0, ran)
    if used:
        ran = min(max(ran, used / most), max(used / least, 1.0))
    held = min(max(used / ran if used and ran else least, least), most)
    return ran * amdahl(held) / amdahl(least)


class Past:
    """Jobs that are known, ended or not, as of `now`."""

    def __init__(self, records: Sequence[JobRecord], now: datetime) -> None:
        self._now = now
        self._records = sorted(records, key=lambda record: (record.created, record.uid))
        self._by_kind: dict[Kind, list[JobRecord]] = defaultdict(list)
        for record in self._records:
            if record.ended is not None or record.started is not None:
                for kind in kinds(record):
                    self._by_kind[kind].append(record)
        self._survival: dict[Kind, Survival] = {}
        self._longest: dict[Kind, list[float]] = {}

    @property
    def ended(self) -> int:
        """Return how many jobs are known that have ended."""
        return sum(record.ended is not None for record in self._records)

    def draw(self, record: JobRecord, age: float, rank: float) -> float:
        """Return how long the job lasts on the whole, in seconds at its minimum size.

        Args:
            age: how long it has lasted so far.
            rank: the share of such jobs that last longer.
        """
        widest: Survival | None = None
        for kind in kinds(record):
            found = self._of(kind)
            if found is None:
                continue
            lengths = self._longest[kind]
            if sum(one > age for one in lengths) >= _ENOUGH:
                return found.draw(age, rank)
            widest = found
        enough = widest is not None and len(self._longest[()]) >= _ENOUGH
        return widest.draw(age, rank) if widest and enough else draw_unknown(age, rank)

    def _of(self, kind: Kind) -> Survival | None:
        if kind in self._survival:
            return self._survival[kind]
        newest = self._by_kind.get(kind, [])[-_NEWEST:]
        observed = [(length(one, self._now), one.ended is not None) for one in newest]
        ends = [time for time, ended in observed if ended]
        if not ends:
            return None
        self._longest[kind] = ends
        found = self._survival[kind] = kaplan_meier(observed)
        return found

    @cached_property
    def days(self) -> int:
        """Return the whole days before now of which arrivals are known."""
        if not self._records:
            return 0
        return (self._now - self._records[0].created) // timedelta(days=1)

    def arrivals(self, ago: int, span: timedelta) -> Iterator[tuple[timedelta, JobRecord]]:
        """Return who came within `span` of the time of day it is now, `ago` days before; beyond
        yesterday the same days come again. Each with the time from then."""
        begin = self._now - timedelta(days=ago)
        window = min(span, self._now - begin)
        turn = timedelta(0)
        known = [r for r in self._records if begin <= r.created < begin + window]
        while known and turn < span:
            for record in known:
                after = turn + (record.created - begin)
                if after < span:
                    yield after, record
            turn += window
