"""The cluster that a simulation runs on, and its rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from volcano_elastic.api.queue_policy import GPU, QueuePolicy
from volcano_elastic.snapshot.snapshot import Queue


class Discipline(StrEnum):
    """Says whether younger gangs may start while the oldest one waits for room."""

    BACKFILL = "backfill"
    """Younger ones that fit start."""
    FIFO = "fifo"
    """All wait behind it."""


class Speeds(StrEnum):
    """Says which speeds of a job the planner knows."""

    KNOWN = "known"
    """All sizes from the start."""
    LEARNT = "learnt"
    """Those it has run at."""
    NONE = "none"
    """Nothing: the planner's prior."""


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """The cluster, its queues and policies, and the price of a resize."""

    nodes: int
    per_node: int
    resource: str = GPU
    """The resource that a worker holds one of."""
    queues: tuple[Queue, ...] = ()
    policies: tuple[QueuePolicy, ...] = ()
    pause: float = 30.0
    """Seconds that a whole job stands still at a change of its size."""
    grace: float = 0.0
    """Seconds that a removed pod still holds its room."""
    speeds: Speeds = Speeds.KNOWN
    discipline: Discipline = Discipline.BACKFILL
    round: float = 0.0
    """The planner is asked only at multiples of so many seconds; 0: whenever something changes."""

    zero: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    """The trace's zero on the planner's clock."""

    def moment(self, seconds: float) -> datetime:
        return self.zero + timedelta(seconds=seconds)

    @property
    def total(self) -> int:
        return self.nodes * self.per_node
