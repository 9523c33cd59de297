"""An invalid field, worded as Kubernetes words it: `PATH: Required value: why`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MOST = 20
# Names within a path may be of any length.
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    message: str
    """Says what would be right, and what was found."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def required(path: str, why: str) -> Problem:
    return Problem(path, f"Required value: {why}")


def forbidden(path: str, why: str) -> Problem:
    return Problem(path, f"Forbidden: {why}")


def invalid(path: str, value: object, why: str) -> Problem:
    return Problem(path, f"Invalid value: {shown(value)}: {why}")


def unsupported(path: str, value: object, choices: Iterable[str]) -> Problem:
    supported = ", ".join(shown(choice) for choice in choices)
    return Problem(path, f"Unsupported value: {shown(value)}: supported values: {supported}")


def aggregate(problems: Sequence[Problem]) -> str:
    """One text for all, as Kubernetes' error lists print."""
    return _cut(problems[0]) if len(problems) == 1 else f"[{listed(problems, ', ')}]"


def listed(problems: Sequence[Problem], between: str = "; ") -> str:
    """The first few, and how many more: a job may have more than its status could hold."""
    words = [_cut(problem) for problem in problems[:_MOST]]
    if len(problems) > _MOST:
        words.append(f"and {len(problems) - _MOST} more")
    return between.join(words)


def _cut(problem: Problem) -> str:
    text = str(problem)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def shown(value: object) -> str:
    """The value as JSON, cut where it would drown the message."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"
