"""One row of a table: workloads, a cluster, rules, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from experiments.redealt import ROUND, redealt
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.comparison import mean
from volcano_elastic.simulator.config import Discipline, SimulationConfig
from volcano_elastic.simulator.figures import Figures, figures, limits
from volcano_elastic.simulator.outcome import Outcome
from volcano_elastic.simulator.queue import partitioned
from volcano_elastic.simulator.simulation import MakePlan, simulate
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.simulator.worse_off import WorseOff, worse_off
from volcano_elastic.snapshot.snapshot import Snapshot


class Scheduling(StrEnum):
    ELASTIC = "elastic"
    GROW_ONLY = "grow-only"
    """The planner, but nobody ever gives back what it has."""
    RIGID = "rigid"
    """Gangs of the size asked for, with backfill."""
    FIFO = "fifo"
    """The same in strict order."""
    REDEALT = "re-dealt"
    """In rounds, everything anew, whoever holds what (see `redealt`)."""
    STATIC = "static"
    """With backfill, each queue confined to what it deserves."""


@dataclass(frozen=True, slots=True)
class Trial:
    label: str
    workloads: Mapping[str, Sequence[TraceJob]]
    config: SimulationConfig
    scheduling: Scheduling = Scheduling.ELASTIC
    window: float | None = None
    """Seconds; by default each workload's bound on the makespan."""
    compared: bool = False
    """Set it beside rigid scheduling, shared and in static shares, job by job."""


@dataclass(frozen=True, slots=True)
class Result:
    trial: Trial
    found: Figures
    """Means over the workloads."""
    bound: Figures
    than_rigid: tuple[WorseOff, ...]
    """One a workload, where the trial is to be compared."""
    than_static: tuple[WorseOff, ...]
    first: Outcome
    """Outcome of the first workload."""
    by_workload: Mapping[str, Figures]


def run(trial: Trial) -> Result:
    """Simulate every workload of the trial."""
    found: dict[str, Figures] = {}
    bounds: list[Figures] = []
    outcomes: list[Outcome] = []
    than_rigid: list[WorseOff] = []
    than_static: list[WorseOff] = []
    config = trial.config
    for name, jobs in trial.workloads.items():
        window = trial.window or limits(jobs, config.total, 1.0).makespan
        bounds.append(limits(jobs, config.total, window))
        outcome = _simulate(trial.scheduling, jobs, config)
        outcomes.append(outcome)
        rigid = trial.scheduling in (Scheduling.RIGID, Scheduling.FIFO, Scheduling.STATIC)
        found[name] = figures(outcome, window, rigid=rigid)
        if not trial.compared:
            continue
        than_rigid.append(worse_off(outcome, _simulate(Scheduling.RIGID, jobs, config)))
        if any(queue.deserved for queue in config.queues):
            static = _simulate(Scheduling.STATIC, jobs, config)
            than_static.append(worse_off(outcome, static))
    return Result(
        trial=trial,
        found=mean(found.values()),
        bound=mean(bounds),
        than_rigid=tuple(than_rigid),
        than_static=tuple(than_static),
        first=outcomes[0],
        by_workload=found,
    )


def run_all(trials: Iterable[Trial], processes: int) -> list[Result]:
    """In that many processes; the results in the trials' order."""
    listed = list(trials)
    if processes < 2 or len(listed) < 2:
        return [run(trial) for trial in listed]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(run, listed))


def _simulate(
    scheduling: Scheduling, jobs: Sequence[TraceJob], config: SimulationConfig
) -> Outcome:
    make_plan: MakePlan | None = None
    if scheduling is Scheduling.ELASTIC:
        make_plan = Planner(reports=False).plan
    elif scheduling is Scheduling.GROW_ONLY:
        make_plan = _grow_only(Planner(reports=False).plan)
    elif scheduling is Scheduling.REDEALT:
        make_plan = redealt
        config = replace(config, round=ROUND)
    elif scheduling is Scheduling.FIFO:
        config = replace(config, discipline=Discipline.FIFO)
    elif scheduling is Scheduling.STATIC:
        config = replace(config, queues=partitioned(config.queues))
    return simulate(jobs, config, make_plan)


def _grow_only(make_plan: MakePlan) -> MakePlan:
    def growing(snapshot: Snapshot, now: datetime) -> Plan:
        made = make_plan(snapshot, now)
        grown = tuple(decision for decision in made.decisions if decision.new > decision.old)
        return replace(made, decisions=grown)

    return growing
