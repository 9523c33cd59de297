"""Figures of a simulation, and the bounds that no scheduling can beat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from volcano_elastic.api.queue_policy import QueuePolicy, effective
from volcano_elastic.simulator.bounds import bounds
from volcano_elastic.simulator.curve import efficient
from volcano_elastic.simulator.outcome import Outcome, Run
from volcano_elastic.simulator.trace import TraceJob

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, unless the name says otherwise."""

    mean_completion: float
    median_completion: float
    p99_completion: float
    mean_wait: float
    median_wait: float
    p99_wait: float
    makespan: float
    """From the first submission to the last finish."""
    useful_utilisation: float | None
    """Work done in the window, as the worker-seconds it needs at its most efficient size, over
    all worker-seconds of the window."""
    allocated_utilisation: float | None
    """Worker-seconds held in the window over all. Badly scaling jobs inflate it."""
    idle_while_wanted_hours: float
    """Worker-hours idle while some job could have used them efficiently: the integral of
    max(0, min(all, sum over active jobs of what each wants) - held)."""
    standstill_hours: float
    """Worker-hours held by jobs that stood still at a resize."""
    resizes_per_job: float


FIELDS = tuple(Figures.__dataclass_fields__)


def figures(outcome: Outcome, window: float, *, rigid: bool = False) -> Figures:
    """Utilisation counts from the first submission for `window` seconds; see `wanted_over_time`."""
    runs, total = outcome.runs, outcome.config.total
    zero = min(run.job.submit for run in runs)
    until = zero + window
    completions = sorted(run.completion for run in runs)
    waits = sorted(run.wait for run in runs)
    useful = held = still = 0.0
    for run in runs:
        for part in run.segments:
            still += part.size * part.standstill
            end = min(part.end, until)
            if end > part.begin:
                held += part.size * (end - part.begin)
                # Work of one job is worth its least area, whatever size it was done at.
                rate = run.job.curve[part.size] * run.job.area / run.job.work
                useful += rate * max(0.0, end - max(part.begin, part.resume))
    return Figures(
        mean_completion=sum(completions) / len(runs),
        median_completion=percentile(completions, 0.5),
        p99_completion=percentile(completions, 0.99),
        mean_wait=sum(waits) / len(runs),
        median_wait=percentile(waits, 0.5),
        p99_wait=percentile(waits, 0.99),
        makespan=max(run.finish for run in runs) - zero,
        useful_utilisation=useful / (total * window),
        allocated_utilisation=held / (total * window),
        idle_while_wanted_hours=_idle_while_wanted(outcome, rigid) / HOUR,
        standstill_hours=still / HOUR,
        resizes_per_job=sum(run.resizes for run in runs) / len(runs),
    )


def limits(jobs: Sequence[TraceJob], total: int, window: float) -> Figures:
    """Return bounds that no scheduling can beat, as figures; None where only 100 % is known."""
    known = bounds(jobs, total, window)
    lengths = sorted(job.length for job in jobs)
    return Figures(
        mean_completion=known.mean_completion,
        median_completion=percentile(lengths, 0.5),
        p99_completion=percentile(lengths, 0.99),
        mean_wait=0.0,
        median_wait=0.0,
        p99_wait=0.0,
        makespan=known.makespan,
        useful_utilisation=known.useful_utilisation,
        allocated_utilisation=None,
        idle_while_wanted_hours=0.0,
        standstill_hours=0.0,
        resizes_per_job=0.0,
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all are not above (nearest rank)."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def held_over_time(runs: Iterable[Run]) -> list[tuple[float, int]]:
    """(time, workers held from then on), at each change."""
    return _sum_up(
        change
        for run in runs
        for part in run.segments
        for change in ((part.begin, part.size), (part.end, -part.size))
    )


def wanted_over_time(outcome: Outcome, *, rigid: bool = False) -> list[tuple[float, int]]:
    """(time, workers that active jobs could use from then on), at each change.

    A job wants its max, but no more than the policy of its queue calls efficient; with `rigid`,
    just what it asked for.
    """
    policies = effective(outcome.config.policies)

    def most(job: TraceJob) -> int:
        if rigid:
            return job.gpus
        rules = (policies.get(job.queue) or QueuePolicy(job.queue)).surplus
        return max(job.min, min(job.max, efficient(job.curve, rules.min_efficiency)))

    return _sum_up(
        change
        for run in outcome.runs
        for size in [most(run.job)]
        for change in ((run.job.submit, size), (run.finish, -size))
    )


def _idle_while_wanted(outcome: Outcome, rigid: bool) -> float:
    total = outcome.config.total
    held = [(t, n, 0) for t, n in held_over_time(outcome.runs)]
    wanted = [(t, n, 1) for t, n in wanted_over_time(outcome, rigid=rigid)]
    idle, now, levels = 0.0, 0.0, [0, 0]
    for time, level, which in sorted(held + wanted):
        idle += max(0, min(total, levels[1]) - levels[0]) * (time - now)
        now = time
        levels[which] = level
    return idle


def _sum_up(changes: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    level = 0
    for time, change in sorted(changes):
        level += change
        if found and found[-1][0] == time:
            found[-1] = (time, level)
        else:
            found.append((time, level))
    return found
