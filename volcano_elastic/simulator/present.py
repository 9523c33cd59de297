"""A cluster in which a simulation begins: jobs that are there already, and what others hold."""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Job, Pod, Snapshot


@dataclass(frozen=True, slots=True)
class PresentJob:
    """A job that waits or runs when the simulation begins."""

    trace: TraceJob
    """Its work is what is left of it; it was submitted before 0."""
    job: Job
    pods: tuple[Pod, ...]
    """Its workers, bound or not."""
    only: frozenset[str] | None = None
    """Names of the nodes that it may go to; None: any."""


@dataclass(frozen=True, slots=True)
class Present:
    base: Snapshot
    """Nodes, queues, policies and all that stays as it is, pods of others among it; no jobs."""
    jobs: tuple[PresentJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The course of one job, in seconds from now; None: not within the time that was looked at."""

    start: float | None
    """0 too where it runs already."""
    finish: float | None
