"""Ranks that slow their job down, as its coordinator tells it: one Event for each worker."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volcano_elastic.operator.failure_report import Exclusion

REASON = "StragglerFound"
_CAUSES = {"compute": "its own work", "input": "waiting for data"}


@dataclass(frozen=True, slots=True)
class SlowRank:
    worker: int
    """Index of its pod."""
    rank: int
    node: str
    seconds: float
    """Time of a batch, by itself."""
    others: float
    """Their median."""
    cause: str
    """"compute" or "input"."""

    @property
    def message(self) -> str:
        """Return the Event's message."""
        return (
            f"Rank {self.rank} (worker {self.worker}, node {self.node}) slows the job down: a "
            f"batch takes it {self.seconds:.3g} s by itself, and the others {self.others:.3g} s; "
            f"the difference is {_CAUSES[self.cause]}"
        )

    def event_name(self, job: str, job_uid: str) -> str:
        """Return the same for the same worker, so that no operator tells it a second time."""
        text = f"{job_uid} slow {(self.worker, self.node, self.cause)}"
        return f"{job}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def to_leave(slow: Sequence[SlowRank], workers: int) -> tuple[Exclusion, ...]:
    """Return the nodes that a job of so many workers is better off without, even where it finds no
    other: fewer workers then make more batches a second."""
    return tuple(
        Exclusion(one.node, (one.worker,), one.message)
        for one in slow
        if one.seconds * (workers - 1) > one.others * workers
    )


def read(answer: Mapping[str, Any]) -> tuple[SlowRank, ...]:
    """Return the stragglers in a coordinator's /status; what makes no sense is left out."""
    listed = answer.get("stragglers")
    found = []
    for raw in listed if isinstance(listed, list) else ():
        try:
            seconds, others = float(raw["batch_seconds"]), float(raw["others_batch_seconds"])
            worker, rank, cause = int(raw["worker"]), int(raw["rank"]), raw["cause"]
            if cause in _CAUSES and math.isfinite(seconds) and math.isfinite(others):
                found.append(SlowRank(worker, rank, str(raw["node"])[:253], seconds, others, cause))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return tuple(found)
