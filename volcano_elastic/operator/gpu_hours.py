"""Adds up the GPU hours that a job uses, and says when they are written to its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import mean

_WRITE_EVERY = timedelta(minutes=5)


@dataclass(slots=True)
class Use:
    """GPU hours of one job, and when they were last written."""

    hours: float
    seen: datetime
    size: int
    written: datetime


def used(use: Use | None, units: float, desired: int, hours: float, now: datetime) -> Use:
    """Return the job's hours with what `units` have used since it was last seen."""
    if use is None:
        return Use(hours, now, desired, now)
    more = units * max(0.0, (now - use.seen).total_seconds()) / 3600
    return Use(use.hours + more, now, use.size, use.written)


def units(held: Sequence[Mapping[str, int]], resource: str) -> float:
    """Return what a pod holds on average of `resource`, else of cpu: pods may ask for different
    things. `held` is what each asks for, in thousandths."""
    return mean(requests.get(resource, 0) or requests.get("cpu", 0) for requests in held) / 1000


def due(use: Use, desired: int, now: datetime) -> bool:
    """Return whether its hours are to be written: at each change of size, or every few minutes."""
    return desired != use.size or now - use.written >= _WRITE_EVERY
