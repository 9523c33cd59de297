"""How fast a job is at each size: what was measured, and a prior where nothing was.

The prior is Amdahl's law, s(k) = k / (1 + σ (k - 1)) on k GPUs, with σ = 0.036: what the models of
the Philly and Pollux studies fit (.009 to .058). Measured sizes are taken as they are; between two
of them log(speed) is interpolated in log(size); beyond them the law goes on with the σ that fits.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from statistics import median

SERIAL = 0.036
SLOWER = 0.97
"""A larger size must measure below this times the best smaller one to count as a slowdown; less
may be noise."""


CPUS = 16
"""So many CPUs count as one GPU in the prior of jobs without GPUs: what nodes have of each."""


def amdahl(gpus: float, serial: float = SERIAL) -> float:
    """Speed on `gpus` GPUs relative to one."""
    return gpus / (1 + serial * (gpus - 1))


class Curve:
    """log(speed) by size in workers, each of which has `unit` GPUs (see `gpu_equivalents`)."""

    __slots__ = ("_logs", "_serial", "_sizes", "_speeds", "_unit", "best")

    def __init__(self, speeds: Mapping[int, float], unit: float) -> None:
        found = sorted((n, speed) for n, speed in speeds.items() if n > 0 and speed > 0)
        self._unit = unit
        self._sizes = [n for n, _ in found]
        self._speeds = [speed for _, speed in found]
        self._logs = [math.log(speed) for speed in self._speeds]
        self._serial = _fit(found, unit)
        self.best: int | None = self._slowdown()
        """The largest size worth having, where a larger one has measured slower."""

    def _slowdown(self) -> int | None:
        if len(self._sizes) < 2:
            return None
        best = max(range(len(self._sizes)), key=self._speeds.__getitem__)
        slower = any(speed < SLOWER * self._speeds[best] for speed in self._speeds[best + 1 :])
        return self._sizes[best] if slower else None

    def log_speed(self, size: float) -> float:
        sizes, logs = self._sizes, self._logs
        if not sizes:
            return math.log(amdahl(size * self._unit, self._serial))
        i = bisect_left(sizes, size)
        if i < len(sizes) and sizes[i] == size:
            return logs[i]
        if 0 < i < len(sizes):
            low, high = sizes[i - 1], sizes[i]
            part = math.log(size / low) / math.log(high / low)
            return logs[i - 1] + part * (logs[i] - logs[i - 1])
        at = 0 if i == 0 else len(sizes) - 1
        known = amdahl(sizes[at] * self._unit, self._serial)
        return logs[at] + math.log(amdahl(size * self._unit, self._serial) / known)

    def efficiency(self, size: int) -> float:
        """Speed at `size` over its number of GPUs times the speed of one GPU."""
        alone = 1 / self._unit
        return math.exp(self.log_speed(size) - self.log_speed(alone)) * alone / size


def _fit(found: list[tuple[int, float]], unit: float) -> float:
    """σ by the median over pairs of sizes, the prior being one of the votes."""
    votes = [SERIAL]
    if len(found) > 1:
        # Against the first only: quadratic many pairs tell little more.
        (n, base), rest = found[0], found[1:]
        a = n * unit
        for m, speed in rest:
            b = m * unit
            ratio, linear = speed / base, m / n
            # From ratio = linear (1 + σ (a - 1)) / (1 + σ (b - 1)).
            below = ratio * (b - 1) - linear * (a - 1)
            votes.append(min(1.0, max(0.0, (linear - ratio) / below)) if below > 0 else 1.0)
    return median(votes)
