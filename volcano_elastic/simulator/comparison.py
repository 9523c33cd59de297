"""Compares elastic scheduling of a trace with rigid scheduling, and with bounds on both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.figures import FIELDS, Figures, figures, limits
from volcano_elastic.simulator.outcome import Outcome
from volcano_elastic.simulator.queue import partitioned
from volcano_elastic.simulator.simulation import MakePlan, simulate
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.simulator.worse_off import WorseOff, worse_off


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures of the same jobs under each kind of scheduling."""

    window: float
    """Seconds from the first submission over which utilisation counts."""
    rigid: Figures
    bound: Figures
    rigid_outcome: Outcome
    elastic: Figures | None = None
    static: Figures | None = None
    """Rigid, each queue confined to what it deserves; None if the queues say nothing of that."""
    outcome: Outcome | None = None
    than_rigid: WorseOff | None = None
    than_static: WorseOff | None = None


def compare(
    jobs: Sequence[TraceJob],
    config: SimulationConfig,
    make_plan: MakePlan | None,
    *,
    window: float | None = None,
    progress: Callable[[int], None] = lambda finished: None,
) -> Comparison:
    """Simulate `jobs` with the planner, if there is one, and without.

    Args:
        window: seconds; by default the least possible makespan.

    Raises:
        Stuck: some jobs can never finish.
    """
    if make_plan is None:
        # What no rigid schedule can beat.
        jobs = [replace(job, min=job.gpus, max=job.gpus) for job in jobs]
    window = window or limits(jobs, config.total, 1.0).makespan
    bound = limits(jobs, config.total, window)
    rigid = simulate(jobs, config, None)
    found = Comparison(window, figures(rigid, window, rigid=True), bound, rigid)
    if make_plan is None:
        return found
    outcome = simulate(jobs, config, make_plan, progress)
    found = replace(
        found,
        elastic=figures(outcome, window),
        outcome=outcome,
        than_rigid=worse_off(outcome, rigid),
    )
    named = {queue.name for queue in config.queues if queue.deserved is not None}
    if not named or not {job.queue for job in jobs} <= named:
        return found
    static = simulate(jobs, replace(config, queues=partitioned(config.queues)), None)
    return replace(
        found,
        static=figures(static, window, rigid=True),
        than_static=worse_off(outcome, static),
    )


def mean(several: Iterable[Figures]) -> Figures:
    """Return the mean of each figure over several workloads."""
    rows = list(several)

    def of(name: str) -> float | None:
        values = [getattr(row, name) for row in rows]
        return None if None in values else sum(values) / len(values)

    return Figures(**{name: of(name) for name in FIELDS})  # type: ignore[arg-type]
