"""Keeps a job's ledger of GPU time for the next coordinator, and knows what is not in it yet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from elastic_trainer.protocol.message import Goodput, Heartbeat

_NANOSECONDS_PER_MILLISECOND = 1_000_000
_TICKS = os.sysconf("SC_CLK_TCK")


class Counted:
    """Of one agent: until when its time is counted.

    Args:
        clock: nanoseconds, of CLOCK_BOOTTIME.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.goodput = Goodput()
        """As a coordinator told it last."""
        self._clock = clock or _since_boot
        self._until = _began() if clock is None else self._clock()

    def hear(self, message: object) -> None:
        """A coordinator has said something."""
        if isinstance(message, Heartbeat) and message.goodput.id:
            self.goodput, self._until = message.goodput, self._clock()

    @property
    def uncounted_milliseconds(self) -> int:
        """Return how long ago that was; or since when this process runs."""
        return max(0, self._clock() - self._until) // _NANOSECONDS_PER_MILLISECOND


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
