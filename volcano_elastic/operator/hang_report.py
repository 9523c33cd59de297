"""Rounds that were ended as no step came, as their job's coordinator tells it: one Event each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REASON = "TrainingHung"
_MOST_WORDS = 600
"""Characters; an Event's message has 1,024."""


@dataclass(frozen=True, slots=True)
class HungRound:
    round: int
    step: int
    """The last that was applied; -1: none in the round."""
    seconds: float
    words: str
    """Which rank is behind, and how that is known."""

    @property
    def message(self) -> str:
        """Return the Event's message."""
        words = " ".join(self.words[:_MOST_WORDS].split())
        after = f"after step {self.step}" if self.step >= 0 else "since it began"
        return (
            f"Round {self.round} was ended: no step for {self.seconds:.0f} s {after}; {words}; "
            "volcano-elastic describe shows where all ranks were"
        )

    def event_name(self, job: str, job_uid: str) -> str:
        """Return the same for the same round, so that no operator tells it a second time."""
        text = f"{job_uid} hung {self.round} {self.step}"
        return f"{job}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def read(answer: Mapping[str, Any]) -> tuple[HungRound, ...]:
    """Return the hung rounds in a coordinator's /status; what makes no sense is left out, and so
    are ranks that were found at work."""
    listed = answer.get("hangs")
    found = []
    for raw in listed if isinstance(listed, list) else ():
        try:
            if raw["broken"]:
                number, step = int(raw["round"]), int(raw["step"])
                found.append(HungRound(number, step, float(raw["seconds"]), str(raw["words"])))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return tuple(found)
