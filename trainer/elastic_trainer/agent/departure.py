"""An agent's leave: since when it leaves, and how much of its time to live is left; pure."""

from __future__ import annotations

UNREACHABLE_LEAVE_SECONDS = 10.0
"""A leaver that can't reach the coordinator goes; or after a third of its grace."""
KILL_MARGIN_SECONDS = 2.0
"""A leaver goes so long before it is killed, whatever happens; or when three quarters of its grace
are over."""


class Departure:
    """A leave that may begin, once.

    Args:
        grace: seconds from SIGTERM to SIGKILL.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._began: float | None = None

    @property
    def under_way(self) -> bool:
        """Return whether the agent was told to leave."""
        return self._began is not None

    @property
    def unreachable_seconds(self) -> float:
        """Return how long a coordinator that is away is waited for."""
        return min(UNREACHABLE_LEAVE_SECONDS, self.grace / 3)

    @property
    def longest_seconds(self) -> float:
        """Return after how long the agent goes, whatever happens."""
        return self.grace - min(KILL_MARGIN_SECONDS, self.grace / 4)

    def begin(self, now: float) -> None:
        self._began = now

    def grace_left(self, now: float) -> float:
        """Return the seconds until it is killed, above 0; 0 if it does not leave."""
        return 0.0 if self._began is None else max(0.1, self._began + self.grace - now)

    def goodbye_seconds(self, now: float) -> float:
        """Return how long the goodbye may wait for a coordinator, counted from the leave, or from
        now."""
        return max(0.0, (self._began or now) + self.unreachable_seconds - now)
