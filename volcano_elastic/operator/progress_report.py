"""How far a job's training is, as its coordinator tells it and as its status keeps it. Pure.

Names are those that Kubeflow's TrainJob has for its trainer's progress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment

MOST_SECONDS = 1e9
"""A rest that takes longer is none that anybody would read."""
_MUCH = 5
"""A change of so many per cent is written at once."""
_WRITE_EVERY = timedelta(minutes=5)
"""Smaller ones are written so often: each is a call to the API server."""


@dataclass(frozen=True)
class Progress:
    """The progress of a job's training."""

    percentage: int
    """Part of its samples that was consumed; 100 is all."""
    remaining: int | None
    """Seconds that the rest takes at the present size, as fast as it was there; None: not known."""


def read(found: object) -> Progress | None:
    """Return the progress in a coordinator's answer; None where there is none, or no sense in it.

    Args:
        found: {samples, total, remaining_seconds: a number or null}.
    """
    if not isinstance(found, dict):
        return None
    samples, total, left = (found.get(x) for x in ("samples", "total", "remaining_seconds"))
    if type(samples) is not int or type(total) is not int or samples < 0 or total <= 0:
        return None
    percentage = min(100, 100 * samples // total)
    if isinstance(left, bool) or not isinstance(left, int | float) or not 0 <= left <= MOST_SECONDS:
        return Progress(percentage, None)
    return Progress(percentage, math.ceil(left))


def to_write(
    known: Mapping[str, Any], told: Progress | None, now: datetime
) -> dict[str, Any] | None:
    """Return the status' field, if it is to be written.

    Args:
        known: the one that is there; empty: none is.
    """
    if told is None:
        return None
    before, at = (
        known.get("progressPercentage"),
        moment.parse_optional(known.get("lastUpdatedTime")),
    )
    if isinstance(before, int) and at is not None:
        change = abs(told.percentage - before)
        is_small = change < _MUCH and not (change and told.percentage == 100)
        if is_small and (not change or now - at < _WRITE_EVERY):
            return None
    return {
        "progressPercentage": told.percentage,
        "estimatedRemainingSeconds": told.remaining,
        "lastUpdatedTime": moment.timestamp(now),
    }
