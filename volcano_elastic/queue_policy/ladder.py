"""The sizes a job may take, and what each step up or down is worth.

Worth is log(speed) per GPU: the same relative gain counts the same for large and small jobs, and
GPUs go where they raise the product of all speeds most. Under order Equal every curve counts as
linear, so that GPUs go to the smallest.

Nothing here knows a job's min and max: a job whose max is raised must not be worth less by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from volcano_elastic.queue_policy.speed import Curve

LOOK_AHEAD = 4
"""Steps looked past a flat piece of a measured curve, which is concave only roughly."""


@dataclass(frozen=True, slots=True)
class Rung:
    size: int
    worth: float
    """log(speed) per GPU between the two sizes; never negative."""


class Ladder:
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
        self._ups: dict[int, Rung | None] = {}
        self._downs: dict[int, Rung] = {}
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

    def up(self, size: int) -> Rung | None:
        """The next larger size, and what it is worth; None if none is worth having."""
        try:
            return self._ups[size]
        except KeyError:
            found = self._ups[size] = self._up(size)
            return found

    def down(self, size: int) -> Rung:
        """The next smaller size, and what going there loses."""
        try:
            return self._downs[size]
        except KeyError:
            smaller = self._below(size)
            worth = math.inf
            if smaller > 0:
                lost = self._log(size) - self._log(smaller)
                worth = max(0.0, lost / ((size - smaller) * self._unit_gpus))
            found = self._downs[size] = Rung(smaller, worth)
            return found

    def _up(self, size: int) -> Rung | None:
        best: Rung | None = None
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
                best = Rung(reached, worth)
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
