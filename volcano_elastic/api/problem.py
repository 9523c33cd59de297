"""What is wrong with one field, worded as Kubernetes words it: `PATH: Required value: why`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    message: str
    """What would be right, and what was found."""

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


def aggregate(problems: Iterable[Problem]) -> str:
    """One text for all, as Kubernetes' error lists print."""
    words = [str(problem) for problem in problems]
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def shown(value: object) -> str:
    """The value as JSON, cut where it would drown the message."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"
