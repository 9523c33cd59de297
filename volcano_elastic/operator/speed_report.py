"""Says which of the speeds and pauses that a coordinator tells are written to its job's status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

_NOISE = 0.05
_PAUSE_NOISE = 0.25


def news(known: Mapping[str, Any], speeds: Mapping[int, float]) -> dict[str, float]:
    """Return the measured speeds that are to be written: new sizes, and changes beyond noise."""
    found = {}
    for size, speed in speeds.items():
        before = known.get(str(size))
        if before is None or not abs(speed - float(before)) <= _NOISE * float(before):
            found[str(size)] = speed
    return found


def pause_to_write(known: Any, pause: timedelta | None) -> float | None:
    """Return the seconds that a resize usually takes, if they are to be written: the first ones,
    and changes beyond noise."""
    if pause is None:
        return None
    seconds = pause.total_seconds()
    is_known = isinstance(known, int | float)
    return None if is_known and abs(seconds - known) <= _PAUSE_NOISE * known else seconds
