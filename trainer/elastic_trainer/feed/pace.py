"""Pace: how long steps take while newcomers follow, and how much longer than without them."""

from __future__ import annotations

from collections import deque
from statistics import median

USUAL = 9
RECENT = 5
"""Steps by which it is told how long one takes: without newcomers, and with them."""


class Pace:
    """Times are in seconds, of any clock that only goes forward."""

    def __init__(self) -> None:
        self.lost = 0.0
        """Seconds that steps have taken longer for newcomers, since the beginning."""
        self._last: float | None = None
        """When the last step had passed."""
        self._usual: deque[float] = deque(maxlen=USUAL)
        self._recent: deque[float] = deque(maxlen=RECENT)

    def begin(self) -> None:
        """Another round, whose steps take as long as they take."""
        self._last = None
        self._usual.clear()
        self._recent.clear()

    def passed(self, now: float, *, followed: bool) -> None:
        """Note the end of a step.

        Args:
            followed: newcomers were there meanwhile.
        """
        last, self._last = self._last, now
        if last is None:
            return
        if not followed:
            self._recent.clear()
            self._usual.append(now - last)
            return
        self._recent.append(now - last)
        if self._usual:  # by the medians, as a step may hold an evaluation
            self.lost += max(0.0, median(self._recent) - median(self._usual))

    def kept(self, seconds: float) -> None:
        """Note that the step in progress was kept so long, for newcomers alone."""
        self.lost += seconds
        if self._last is not None:
            self._last += seconds

    @property
    def step_seconds(self) -> float:
        """Return how long a step takes now, without what it was kept for; 0: unknown."""
        known = self._recent or self._usual
        return median(known) if known else 0.0
