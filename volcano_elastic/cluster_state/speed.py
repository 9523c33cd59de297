"""Estimates a job's speed at each size, and the worth of each step up or down.

The prior is Amdahl's law, s(k) = k / (1 + σ (k - 1)) on k GPUs, with σ = 0.036: what the models of
the Philly and Pollux studies fit (.009 to .058). Measured sizes are taken as they are; between two
of them log(speed) is interpolated in log(size); beyond them the law goes on with the σ that fits.

A step's worth is log(speed) per GPU: the same relative gain counts the same for large and small
jobs, and GPUs go where they raise the product of all speeds most. Under order Equal every curve
counts as linear, so that GPUs go to the smallest. A job's min and max don't matter here: a job must
not be worth less because its max is raised.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
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


LOOK_AHEAD = 4
"""Steps looked past a flat piece of a measured curve, which is concave only roughly."""


@dataclass(frozen=True, slots=True)
class Step:
    size: int
    worth: float
    """log(speed) per GPU between the two sizes; never negative."""


class SizeSteps:
    """Steps of one curve, for workers of `unit_gpus` that change `node_unit` at a time and of which
    a node takes `per_node`."""

    __slots__ = ("_downs", "_equal", "_log", "_stride", "_unit", "_unit_gpus", "_ups", "limit")

    def __init__(
        self,
        curve: Curve,
        *,
        unit_gpus: float,
        node_unit: int,
        per_node: int,
        min_efficiency: float,
        equal: bool,
        curves_count: bool = True,
    ) -> None:
        self._unit, self._unit_gpus = node_unit, unit_gpus
        # Whole nodes from one node on, where that is possible in whole units.
        self._stride = max(node_unit, per_node - per_node % node_unit)
        self._log = math.log if equal else curve.log_speed
        self._ups: dict[int, Step | None] = {}
        self._downs: dict[int, Step] = {}
        self.limit: float = math.inf
        """Growth stops here: beyond it the job is inefficient or slower."""
        if curves_count:
            self.limit = self._efficient(curve, min_efficiency)
            if curve.best is not None:
                self.limit = min(self.limit, curve.best)

    def _efficient(self, curve: Curve, least: float) -> float:
        """The largest size in whole units that is efficient enough."""
        if least <= 0:
            return math.inf
        low, high = 0, self._unit
        while curve.efficiency(high) >= least:
            if high > 1 << 24:
                return math.inf
            low, high = high, high * 2
        while high - low > self._unit:
            middle = (low + high) // 2 // self._unit * self._unit
            if curve.efficiency(middle) >= least:
                low = middle
            else:
                high = middle
        return low

    def up(self, size: int) -> Step | None:
        """The next larger size, and what it is worth; None if none is worth having."""
        try:
            return self._ups[size]
        except KeyError:
            found = self._ups[size] = self._up(size)
            return found

    def down(self, size: int) -> Step:
        """The next smaller size, and what going there loses."""
        try:
            return self._downs[size]
        except KeyError:
            smaller = self._below(size)
            worth = math.inf
            if smaller > 0:
                lost = self._log(size) - self._log(smaller)
                worth = max(0.0, lost / ((size - smaller) * self._unit_gpus))
            found = self._downs[size] = Step(smaller, worth)
            return found

    def _up(self, size: int) -> Step | None:
        best: Step | None = None
        larger = size
        for _ in range(LOOK_AHEAD):
            larger = self._above(larger)
            reached = larger
            if reached > self.limit:
                reached = int(self.limit) - (int(self.limit) - size) % self._unit
                if reached <= size:
                    break
            gained = self._log(reached) - self._log(size) if size > 0 else math.inf
            worth = gained / ((reached - size) * self._unit_gpus)
            if worth > 0 and (best is None or worth > best.worth * (1 + 1e-9)):
                best = Step(reached, worth)
            if reached < larger:
                break
        return best

    def _above(self, size: int) -> int:
        if size >= self._stride:
            return (size // self._stride + 1) * self._stride
        doubled = max(size * 2, size + self._unit)
        return min(doubled - (doubled - size) % self._unit, self._stride)

    def _below(self, size: int) -> int:
        if size > self._stride:
            return (size - 1) // self._stride * self._stride
        half = size // 2
        return max(0, min(size - self._unit, half - (half - size) % self._unit))
