"""Durations as Go writes them."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LONGEST = 2**63 / 1e9


def go_duration(text: str) -> timedelta | None:
    """A Go duration such as `90s` or `1h30m`; None if it is none."""
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    # Go refuses what its 64 bits of nanoseconds, 292 years, don't hold.
    return timedelta(seconds=seconds) if seconds < _LONGEST else None
