"""Progress of a job's training, as its coordinator tells it and as its status keeps it. Pure.

Names are those that Kubeflow's TrainJob has for its trainer's progress.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from volcano_elastic.api import moment

MOST_SECONDS = 1e9
"""A rest that takes longer is none that anybody would read."""
MOST_METRICS, MOST_CHARACTERS = 16, 63
"""Names of metrics, and characters of each: more are left out."""
_MUCH = 5
"""A change of so many per cent is written at once."""
_WRITE_EVERY = timedelta(minutes=5)
"""Smaller ones, and metrics, are written so often: each is a call to the API server."""


@dataclass(frozen=True)
class Progress:
    """The progress of a job's training."""

    percentage: int | None
    """Part of its samples that was consumed; 100 is all. None: not known."""
    remaining: int | None
    """Seconds that the rest takes at the present size, as fast as it was there; None: not known."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Figures that the script reported last, by name: numbers as texts."""


def read(found: object, metrics: object = None) -> Progress | None:
    """Return the progress in a coordinator's answer; None where there is none, or no sense in it.

    Args:
        found: {samples, total, remaining_seconds: a number or null}.
        metrics: numbers as texts, by name.
    """
    reported = _metrics(metrics)
    counted = _counted(found)
    if counted is None:
        return Progress(None, None, reported) if reported else None
    return replace(counted, metrics=reported)


def _counted(found: object) -> Progress | None:
    if not isinstance(found, dict):
        return None
    samples, total, left = (found.get(x) for x in ("samples", "total", "remaining_seconds"))
    if type(samples) is not int or type(total) is not int or samples < 0 or total <= 0:
        return None
    percentage = min(100, 100 * samples // total)
    if isinstance(left, bool) or not isinstance(left, int | float) or not 0 <= left <= MOST_SECONDS:
        return Progress(percentage, None)
    return Progress(percentage, math.ceil(left))


def _metrics(found: object) -> dict[str, str]:
    reported = found.items() if isinstance(found, dict) else ()
    sensible = {
        name: value
        for name, value in reported
        if isinstance(name, str) and 0 < len(name) <= MOST_CHARACTERS and _is_number(value)
    }
    return dict(islice(sensible.items(), MOST_METRICS))


def _is_number(value: object) -> bool:
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def to_write(
    known: Mapping[str, Any], reported: Progress | None, now: datetime
) -> dict[str, Any] | None:
    """Return the status' field, if it is to be written.

    Args:
        known: the one that is there; empty: none is.
    """
    if reported is None:
        return None
    metrics = [{"name": name, "value": value} for name, value in sorted(reported.metrics.items())]
    before, at = (
        known.get("progressPercentage"),
        moment.parse_optional(known.get("lastUpdatedTime")),
    )
    if at is not None and (isinstance(before, int) or reported.percentage is None):
        change = 0 if reported.percentage is None else abs(reported.percentage - int(before or 0))
        is_small = change < _MUCH and not (change and reported.percentage == 100)
        if reported.remaining is not None and known.get("estimatedRemainingSeconds") is None:
            is_small = False  # forecasts have nothing else to go by
        is_same = not change and metrics == (known.get("metrics") or [])
        if is_small and (is_same or now - at < _WRITE_EVERY):
            return None
    return {
        "progressPercentage": reported.percentage,
        "estimatedRemainingSeconds": reported.remaining,
        **({"metrics": metrics} if metrics else {}),
        "lastUpdatedTime": moment.timestamp(now),
    }
