"""Forecasts of starts and ends, judged on weeks of Philly that nothing was fitted to."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from experiments.source import Source
from experiments.table import markdown, percent
from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.forecast.forecast import HORIZON, Forecast, Interval, Scene, forecast
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.past import Past
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.outcome import Run
from volcano_elastic.simulator.simulation import simulate
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.snapshot.snapshot import Snapshot

DAY = 86_400.0
WEEK = 7 * DAY
FIRST = 4
"""Week of the trace in which the simulation begins; weeks before have few jobs."""
FITTED, HELD_BACK = range(6, 9), range(9, 13)
"""Weeks that constants were chosen by, and weeks that nothing was chosen by."""
QUEUES = ("7f04ca", "103959", "e13805")
EVERY = 2 * DAY
TARGET = (0.7, 0.9)
KINDS = {
    "minimums of what was asked for": "min=gpus,max=min(4*gpus,64)",
    "minimums of a quarter": "min=ceil(gpus/4),max=min(4*gpus,64)",
}


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at a moment."""

    at: float
    time: datetime
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Answer:
    """A forecast of a job's start or end, and the event, in seconds from the question."""

    said: Interval
    happened: float


def looks_at(
    jobs: Sequence[TraceJob], config: SimulationConfig, begin: float, end: float, every: float
) -> tuple[dict[str, Run], list[Look]]:
    """Return what happened to each job, and the cluster at several moments meanwhile."""
    planner = Planner(reports=False)
    looks: list[Look] = []
    due = begin + every / 2

    def watched(snapshot: Snapshot, now: datetime) -> Plan:
        nonlocal due
        at = (now - config.zero).total_seconds()
        if due <= at < end:
            looks.append(Look(at, now, snapshot))
            due += every * (1 + (at - due) // every)
        return planner.plan(snapshot, now)

    outcome = simulate(jobs, config, watched)
    return {run.job.name: run for run in outcome.runs}, looks


def record_of(run: Run, config: SimulationConfig, at: float) -> JobRecord:
    """Return what the cluster would know of a job at that time."""
    hours = sum(s.size * max(0.0, min(s.end, at) - s.begin) for s in run.segments) / 3600
    return JobRecord(
        uid=run.job.name,
        job=run.job.name,
        queue=run.job.queue,
        each=1000,
        min=run.job.min,
        max=run.job.max,
        created=config.moment(run.job.submit),
        started=config.moment(run.start) if run.start <= at else None,
        ended=config.moment(run.finish) if run.finish <= at else None,
        hours=hours,
    )


def judged(
    look: Look, runs: Mapping[str, Run], config: SimulationConfig, seed: int
) -> tuple[list[Answer], list[Answer]]:
    """Return answers about starts of jobs that wait, and about ends of all, with what happened."""
    known = [record_of(r, config, look.at) for r in runs.values() if r.job.submit <= look.at]
    there = [job.key for job in look.snapshot.jobs]
    scene = Scene(
        snapshot=look.snapshot,
        now=look.time,
        resource=GPU,
        records={record.job: record for record in known if record.job in set(there)},
        past=Past(known, look.time),
    )
    said: Mapping[str, Forecast] = forecast(scene, there, random.Random(seed).random)
    starts, ends = [], []
    for key, one in said.items():
        run = runs[key]
        if one.start is not None and run.start > look.at:
            starts.append(Answer(one.start, run.start - look.at))
        ends.append(Answer(one.end, run.finish - look.at))
    return starts, ends


def section(source: Source, weeks: range = HELD_BACK) -> str:
    """Return how forecasts held in these weeks, with minimums of two kinds."""
    config = SimulationConfig(8, 8) if source.real else SimulationConfig(2, 4)
    rows = []
    for label, elastic in KINDS.items():
        for what, answers in zip(
            ("start", "end"), _answers(source, config, elastic, weeks), strict=True
        ):
            if answers:
                rows.append([f"{what}, {label}", *_cells(answers)])
    head = ["", "answers", "held", "earlier", "later", "median error, h", "median of the truth, h"]
    return markdown(head, rows)


def _answers(
    source: Source, config: SimulationConfig, elastic: str, weeks: range
) -> Iterator[list[Answer]]:
    end = weeks.stop * WEEK
    jobs = source.philly_months(config.total, elastic, QUEUES, FIRST * WEEK, end)
    begin, every = weeks.start * WEEK, EVERY
    if not source.real:
        begin, end = 0.0, max(job.submit for job in jobs)
        every = end / 3
    runs, looks = looks_at(jobs, config, begin, end, every)
    both = [judged(look, runs, config, seed) for seed, look in enumerate(looks)]
    for which in (0, 1):
        yield [answer for pair in both for answer in pair[which]]


def _cells(answers: Sequence[Answer]) -> list[str]:
    count = len(answers)
    held = sum(one.said.holds(one.happened) for one in answers)
    early = sum(one.said.low is None or one.happened < one.said.low for one in answers)
    # Whoever says "later than a month" is off by what is missing to it, at least.
    month = HORIZON.total_seconds()
    errors = [
        abs((month if a.said.middle is None else a.said.middle) - a.happened) for a in answers
    ]
    low, high = TARGET
    place = "within" if low <= held / count <= high else "outside"
    return [
        str(count),
        f"{percent(held / count)} ({place} 70 to 90)",
        percent(early / count),
        percent((count - held - early) / count),
        f"{median(errors) / 3600:.1f}",
        f"{median(one.happened for one in answers) / 3600:.1f}",
    ]
