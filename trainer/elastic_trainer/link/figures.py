"""Figures of training that a script reports, such as its loss: what they are, when they are told.

They end in the job's status, as Kubeflow's TrainJob has its metrics: texts by name. Pure; clocks
are arguments.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MOST = 16
"""Names that a job has at once."""
MOST_CHARACTERS = 63
"""Most characters of a name."""
EVERY_SECONDS = 1.0


class Figures:
    """The figures of one process, those that its agent was not told yet kept apart."""

    def __init__(self) -> None:
        self._untold: dict[str, str] = {}
        self._known: set[str] = set()
        self._told_at = -math.inf

    def report(self, figures: Mapping[str, float], now: float) -> dict[str, str]:
        """Return all that are to be told now: at most once in EVERY_SECONDS, new names at once.

        Args:
            figures: by name; a number, or what float() makes one of, as a tensor of one element.
            now: seconds of a clock that goes on.

        Raises:
            ValueError: too many names, or too long ones.
            TypeError: a value is no number.
        """
        names = self._known | figures.keys()
        if len(names) > MOST or any(not 0 < len(name) <= MOST_CHARACTERS for name in figures):
            raise ValueError(
                f"expected at most {MOST} names of at most {MOST_CHARACTERS} characters over all "
                f"reports, found {len(names)}: {', '.join(sorted(names))[:200]}"
            )
        is_new = bool(figures.keys() - self._known)
        # NaN and infinities are news of their own.
        self._untold |= {name: f"{float(value):.6g}" for name, value in figures.items()}
        self._known = names
        if not is_new and now - self._told_at < EVERY_SECONDS:
            return {}
        self._told_at = now
        return self.take()

    def fitting(self, log: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers of what a library logs that there is room for, in the log's order;
        `report` refuses none of them."""
        free = MOST - len(self._known)
        fits = dict[str, float]()
        for name, value in log.items():
            number, new = _number(value), name not in self._known
            if number is not None and 0 < len(name) <= MOST_CHARACTERS and (free > 0 or not new):
                fits[name], free = number, free - new
        return fits

    def take(self) -> dict[str, str]:
        """Return those that were not told yet, which then are."""
        untold, self._untold = self._untold, {}
        return untold


def _number(value: Any) -> float | None:
    """Return the number that this is, a tensor of one element included; None: it is none."""
    if isinstance(value, bool | str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # as a tensor of several elements raises
        return None


def encoded(figures: Mapping[str, str]) -> str:
    """Return them as one text, to be sent to the agent."""
    return json.dumps(figures)


def decoded(text: str) -> dict[str, str]:
    """Return the figures that a worker sent.

    Raises:
        ValueError: they are none.
    """
    try:
        found = json.loads(text)
        good = isinstance(found, dict) and len(found) <= MOST and all(map(_is_one, found.items()))
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise ValueError(f"expected {MOST} names with numbers as texts, found {text[:80]!r}")
    return dict(found)


def _is_one(figure: tuple[str, object]) -> bool:
    name, value = figure
    if not 0 < len(name) <= MOST_CHARACTERS or not isinstance(value, str):
        return False
    float(value)
    return len(value) <= MOST_CHARACTERS
