"""Keeps a job's ledger of GPU time for the next coordinator, and knows what is not in it yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from elastic_trainer.protocol.message import Goodput, Heartbeat, Moment

_NANOSECONDS_PER_MILLISECOND = 1_000_000
MOST_KEEPERS = 8
_TICKS = os.sysconf("SC_CLK_TCK")


class Counted:
    """Until when one agent's time is counted.

    Args:
        clock: nanoseconds, of CLOCK_BOOTTIME.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.goodput = Goodput()
        """The ledger that a coordinator told last."""
        self._keepers: list[tuple[str, int]] = []
        self._clock = clock or _since_boot
        self._until = self._began = _began() if clock is None else self._clock()

    def hear(self, message: object) -> None:
        """A coordinator has said something."""
        if isinstance(message, Heartbeat) and message.goodput.id:
            self.goodput, self._until = message.goodput, self._clock()
            keeper = message.goodput.keeper
            if not self._keepers or self._keepers[0][0] != keeper:
                self._keepers = [(keeper, self._until), *self._keepers][:MOST_KEEPERS]

    @property
    def uncounted_milliseconds(self) -> int:
        """Return how long ago that was; or since when this process runs."""
        return self._passed(self._until)

    @property
    def keepers(self) -> tuple[Moment, ...]:
        """Return the coordinators that told it, the newest first, and since when."""
        return tuple(Moment(one, self._passed(since)) for one, since in self._keepers)

    def _passed(self, since: int) -> int:
        """Return milliseconds."""
        return max(0, self._clock() - since) // _NANOSECONDS_PER_MILLISECOND

    @property
    def alive_milliseconds(self) -> int:
        """Return how long this process runs."""
        return self._passed(self._began)


def _since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _began() -> int:
    """Return when this process began; now, where that can't be told."""
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks = int(fields[19])
        return ticks * 1_000_000_000 // _TICKS
    except (OSError, ValueError, IndexError):
        return _since_boot()
