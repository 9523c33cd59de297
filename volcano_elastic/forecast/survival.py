"""Estimates how long jobs last, from some that ended and some that still run (Kaplan and Meier)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

MIDDLE = 3600.0
"""Seconds that half of all jobs last of which nothing is known. 80 % of them last between 7 minutes
and 9 hours; who has lasted long goes on about as long again (a log-logistic law of shape 1)."""


@dataclass(frozen=True, slots=True)
class Survival:
    """The share of jobs that last longer than a time."""

    times: tuple[float, ...]
    """At which some ended, ascending."""
    shares: tuple[float, ...]
    """That last longer than the time at the same place."""

    def share(self, time: float) -> float:
        """Return the share of jobs that last longer than `time`."""
        place = bisect_right(self.times, time)
        known = self.shares[place - 1] if place else 1.0
        last = self.times[-1]
        return known if time <= last else known * last / time

    def draw(self, age: float, rank: float) -> float:
        """Return how long a job lasts on the whole that has lasted for `age`.

        Args:
            rank: the share of such jobs that last longer, above 0 and below 1.
        """
        wanted = rank * self.share(age)
        low, high = 0, len(self.shares)
        while low < high:
            middle = (low + high) // 2
            if self.shares[middle] <= wanted:
                high = middle
            else:
                low = middle + 1
        if low < len(self.times):
            return max(age, self.times[low])
        # Nobody is known to have lasted as long: half of those last twice as long.
        return max(age, self.shares[-1] * self.times[-1] / wanted)


def draw_unknown(age: float, rank: float) -> float:
    """Return the same without any past, by the law of `MIDDLE`."""
    return (MIDDLE + age) / rank - MIDDLE


def kaplan_meier(observed: Iterable[tuple[float, bool]]) -> Survival:
    """Return the survival of jobs, each observed for a time, with whether it ended then.

    The last share is never 0: one job more may last longer than all others did.
    """
    ordered = sorted(observed)
    left, share = len(ordered), 1.0
    times: list[float] = []
    shares: list[float] = []
    for time, group in groupby(ordered, key=lambda one: one[0]):
        ends = [ended for _, ended in group]
        if any(ends):
            # As if one job more were there that has not ended.
            share *= 1 - sum(ends) / (left + 1)
            times.append(max(time, 1.0))
            shares.append(share)
        left -= len(ends)
    return Survival(tuple(times), tuple(shares))
