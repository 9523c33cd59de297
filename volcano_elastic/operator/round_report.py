"""Rounds of a job's training, from its coordinator's answer; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_MOST = 64
_LATEST = 1e11
"""Seconds since 1970, beyond which no clock is right."""


@dataclass(frozen=True, slots=True)
class ReportedRound:
    """A round, by its coordinator's clock; None: it hasn't come to that."""

    number: int
    nodes: int
    """Its agents."""
    made: datetime
    """All were told their ranks."""
    reason: str = ""
    """Why there was a new one."""
    first_step: datetime | None = None
    last_step: datetime | None = None
    ended: datetime | None = None
    pause: float | None = None
    """Seconds from the last step of the round before to the first of this one."""
    first: int | None = None
    """Number of its first step."""
    last: int | None = None
    lost: int = 0
    """Workers whose loss ended it."""


def read(reported: object) -> tuple[ReportedRound, ...]:
    """Return the newest rounds of `rounds` in the answer, by number; those that make no sense are
    left out."""
    entries = reported[-_MOST:] if isinstance(reported, list) else ()
    found = {one.number: one for entry in entries if (one := _round(entry)) is not None}
    return tuple(found[number] for number in sorted(found))


def _round(entry: object) -> ReportedRound | None:
    if not isinstance(entry, dict):
        return None
    number, nodes = _count(entry.get("round")), _count(entry.get("world"))
    made = _moment(entry, "time")
    if not number or not nodes or made is None:
        return None
    reason, pause = entry.get("reason"), entry.get("pause_seconds")
    return ReportedRound(
        number,
        nodes,
        made,
        reason[:200] if isinstance(reason, str) else "",
        _moment(entry, "first_step_time"),
        _moment(entry, "last_step_time"),
        _moment(entry, "end_time"),
        _number(pause),
        _count(entry.get("first_step")),
        _count(entry.get("last_step")),
        _count(entry.get("lost")) or 0,
    )


def _moment(entry: Mapping[str, Any], name: str) -> datetime | None:
    found = _number(entry.get(name))
    return None if found is None else datetime.fromtimestamp(found, UTC)


def _count(found: object) -> int | None:
    return found if type(found) is int and 0 <= found < 1 << 53 else None


def _number(found: object) -> float | None:
    known = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if known and 0 <= found < _LATEST else None  # type: ignore[arg-type,operator]
