"""Ranks whose state differs from others', as their job's coordinator tells it: one Event each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from volcano_elastic.operator.failure_report import Exclusion

REASON = "StateDiverged"


@dataclass(frozen=True, slots=True)
class DivergedRank:
    rank: int
    worker: int
    """Index of its pod."""
    node: str
    step: int
    """At which it was found."""
    agreed: int
    """The newest step before at which all had the same; -1: none."""
    outvoted: bool
    """Most ranks have another state than it; if not, each one's may be wrong."""

    @property
    def message(self) -> str:
        """Return the Event's message."""
        since = f"all agreed at step {self.agreed}" if self.agreed >= 0 else "they never agreed"
        rest = (
            "it takes theirs at the next round"
            if self.outvoted
            else "no state is that of most ranks, so each may be wrong, and nothing was changed"
        )
        return (
            f"Rank {self.rank} (worker {self.worker}, node {self.node}) has another state than "
            f"others at step {self.step}, where all should have the same; {since}; {rest}"
        )

    def event_name(self, job: str, job_uid: str) -> str:
        """Return the same for the same finding, so that no operator tells it a second time."""
        text = f"{job_uid} diverged {(self.worker, self.rank, self.node, self.step)}"
        return f"{job}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def to_leave(diverged: Iterable[DivergedRank]) -> tuple[Exclusion, ...]:
    """Return the nodes whose ranks had another state than most; where there is no majority, no node
    is more suspect than the others."""
    return tuple(
        Exclusion(one.node, (one.worker,), one.message) for one in diverged if one.outvoted
    )


def read(answer: Mapping[str, Any]) -> tuple[DivergedRank, ...]:
    """Return the ranks in a coordinator's /status; what makes no sense is left out."""
    listed = answer.get("diverged")
    found = []
    for raw in listed if isinstance(listed, list) else ():
        try:
            numbers = int(raw["rank"]), int(raw["worker"])
            steps = int(raw["step"]), int(raw["agreed_step"])
            found.append(
                DivergedRank(*numbers, str(raw["node"])[:253], *steps, raw["outvoted"] is True)
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return tuple(found)
