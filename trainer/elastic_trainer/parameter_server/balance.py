"""Balance: which buckets leave a server that has far more to do than the others. Pure.

A server's work is the rows a second of its buckets, times how much longer than the others it takes
for a row. Counts of buckets stay within a half and three halves of an even share, as memory follows
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.parameter_server.load import ServerLoad

HOT = 1.3
"""A server with so many times the mean work gives some away."""
SLOW = 2.0
"""A server that takes so many times the median for a row is slow."""
LEAST_ROWS_PER_SECOND = 1000.0
"""Below this, of all servers together, nothing is moved."""
LEAST_GAIN = 0.05
"""Share of the mean work; a move that takes less is none worth its pause."""


@dataclass(frozen=True)
class Holder:
    """A server, as balance sees it."""

    buckets: NDArray[np.int64]
    rates: NDArray[np.float64]
    """Rows a second of each of them."""
    slowness: float = 1.0

    @property
    def work(self) -> float:
        return float(self.rates.sum()) * self.slowness


@dataclass(frozen=True)
class Relief:
    source: int
    target: int
    buckets: tuple[int, ...]


def relief(holders: Sequence[Holder]) -> Relief | None:
    """Return what the busiest of these holders is to give to the one with least to do; None where
    that isn't worth it, or no bucket is small enough.

    After it nobody has more work than the busiest had, and the target no more than the mean.
    """
    if len(holders) < 2:
        return None
    work = [one.work for one in holders]
    mean = sum(work) / len(holders)
    source, target = int(np.argmax(work)), int(np.argmin(work))
    rows = sum(float(one.rates.sum()) for one in holders)
    if rows < LEAST_ROWS_PER_SECOND or work[source] <= HOT * mean:
        return None
    even = sum(len(one.buckets) for one in holders) / len(holders)
    may_give = len(holders[source].buckets) - int(np.ceil(even / 2))
    may_get = int(even * 3 / 2) - len(holders[target].buckets)
    excess, room = work[source] - mean, mean - work[target]
    given: list[int] = []
    relieved = gained = 0.0
    for place in np.argsort(-holders[source].rates, kind="stable").tolist():
        rate = float(holders[source].rates[place])
        if relieved >= excess or len(given) >= min(may_give, may_get):
            break
        if gained + rate * holders[target].slowness <= room:
            given.append(int(holders[source].buckets[place]))
            relieved += rate * holders[source].slowness
            gained += rate * holders[target].slowness
    if relieved < LEAST_GAIN * mean:
        return None
    return Relief(source, target, tuple(sorted(given)))


def slowness(loads: Sequence[ServerLoad]) -> list[float]:
    """Return how many times the median each server takes for a row; 1 where it isn't slow, or
    nobody can tell: of fewer than three, which one is."""
    times = [_seconds_a_row(one) for one in loads]
    known = [time for time in times if time > 0]
    if len(known) < 3:
        return [1.0] * len(times)
    usual = median(known)
    return [time / usual if time >= SLOW * usual else 1.0 for time in times]


def _seconds_a_row(load: ServerLoad) -> float:
    """Return the median time of an update by its rows; 0 where there was none."""
    one = load.operations.get("update")
    if one is None or not one.calls_per_second or not one.rows_per_second:
        return 0.0
    return one.p50_seconds * one.calls_per_second / one.rows_per_second
