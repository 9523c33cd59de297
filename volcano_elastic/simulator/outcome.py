"""The result of a simulation: the run of each job."""

from __future__ import annotations

from dataclasses import dataclass, field

from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.trace import TraceJob


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
    """The start, finish and sizes of one job, in seconds of the trace."""

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

    config: SimulationConfig
    runs: tuple[Run, ...]
    plans: int = 0
    """How often the planner was asked."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Decisions by reason."""
    leaving: float = 0.0
    """Worker-seconds that removed pods held in their grace."""


class Stuck(RuntimeError):
    """Jobs that can never finish: nothing is left to happen, and they wait."""
