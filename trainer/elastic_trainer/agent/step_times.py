"""Measures the steps of a node's workers, for how patient to be with them; pure."""

from __future__ import annotations

from collections import deque

from elastic_trainer.protocol.message import STEPS_PATIENCE

RECENT = 16
"""Readings that count; a step that is longer than a beat is a reading of its own."""


class StepTimes:
    """Kept from round to round, as a round that ends may be too young to have a step."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._last: tuple[int, int, float] | None = None

    @property
    def long(self) -> float:
        """Seconds of a long step: the longest recent one but one, so that a single evaluation, or
        a first step that compiles, doesn't count as usual; 0 where no step was measured."""
        return sorted(self._recent)[-2:][0] if self._recent else 0.0

    def add(self, number: int, step: int, time: float) -> None:
        """`step` of round `number` was applied at `time` (seconds of one clock)."""
        last, self._last = self._last, (number, step, time)
        if last is not None and last[0] == number and step > last[1]:
            self._recent.append((time - last[2]) / (step - last[1]))

    def patience(self, least: float) -> float:
        """Seconds that a worker may take to come out of a round that is over.

        Its collectives are broken at once, so it may still compute: a step at most, of which the
        first, which also compiles and allocates, has no measure.

        Args:
            least: seconds, whatever was measured.
        """
        return max(least, STEPS_PATIENCE * (self.long or least))
