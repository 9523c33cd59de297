"""Jobs and a cluster to simulate."""

from __future__ import annotations

from volcano_elastic.api.queue_policy import Grow, QueuePolicy, Rebalance
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.curve import (
    Curve,
    amdahl,
)
from volcano_elastic.simulator.outcome import Outcome
from volcano_elastic.simulator.trace import TraceJob

LINEAR = amdahl(0.0, 512)
CALM = QueuePolicy("default", grow=Grow(), rebalance=Rebalance(gap=0))
SMALL = SimulationConfig(2, 4, pause=30.0)


def job(
    name: str,
    submit: float,
    gpus: int,
    seconds: float,
    least: int | None = None,
    most: int | None = None,
    *,
    queue: str = "default",
    curve: Curve = LINEAR,
) -> TraceJob:
    work = seconds * curve[gpus]
    return TraceJob(name, queue, submit, gpus, work, curve, least or gpus, most or gpus)


def times(outcome: Outcome) -> dict[str, tuple[float, float]]:
    return {run.job.name: (run.start, run.finish) for run in outcome.runs}
