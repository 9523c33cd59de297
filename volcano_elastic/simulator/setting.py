"""What a simulation runs on and by which rules, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from volcano_elastic.api.queue_policy import GPU, QueuePolicy
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Queue


class Discipline(StrEnum):
    """What the scheduler does when the oldest waiting gang finds no room."""

    BACKFILL = "backfill"
    """Younger ones that fit start."""
    FIFO = "fifo"
    """All wait behind it."""


class Speeds(StrEnum):
    """What the planner is told of a job's speed."""

    KNOWN = "known"
    """All sizes from the start."""
    LEARNT = "learnt"
    """Those it has run at."""
    NONE = "none"
    """Nothing: the planner's prior."""


@dataclass(frozen=True, slots=True)
class Setting:
    nodes: int
    per_node: int
    resource: str = GPU
    """What a worker holds one of."""
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

    @property
    def total(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True)
class Segment:
    """A time in which a job holds the same number of workers."""

    begin: float
    end: float
    size: int
    resume: float
    """From `begin` to here it stands still."""

    @property
    def standstill(self) -> float:
        """Seconds."""
        return max(0.0, min(self.end, self.resume) - self.begin)


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one job."""

    job: TraceJob
    start: float
    finish: float
    resizes: int
    segments: tuple[Segment, ...]

    @property
    def wait(self) -> float:
        return self.start - self.job.submit

    @property
    def completion(self) -> float:
        return self.finish - self.job.submit


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation: one run a job, in order of submission."""

    setting: Setting
    runs: tuple[Run, ...]
    plans: int = 0
    """How often the planner was asked."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Decisions by reason."""
    leaving: float = 0.0
    """Worker-seconds that removed pods held in their grace."""


class Stuck(RuntimeError):
    """Jobs that can never finish: nothing is left to happen, and they wait."""
