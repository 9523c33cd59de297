"""Reads a run's load by part. Pure."""

from __future__ import annotations

from volcano_elastic.api.role import elastic, known
from volcano_elastic.brain.estimate.job_load import JobLoad
from volcano_elastic.brain.history.run import Run

WORKER = elastic().name
SERVING = next(role.name for role in known() if role.serves)


def load_of(run: Run) -> JobLoad:
    """Return what a run's pods usually used, worker 0 first."""
    loads = sorted((load for load in run.loads if load.peak.memory), key=lambda load: load.index)
    return JobLoad(
        tuple(load.usual for load in loads if load.role == SERVING),
        tuple(load.usual for load in loads if load.role == WORKER),
    )
