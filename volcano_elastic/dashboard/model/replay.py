"""Replays what was recorded, as it was and with a supposed change, and compares the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.model.queue_row import family
from volcano_elastic.dashboard.model.what_if import NEWCOMER, NoAnswer, Question, changes
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.workload import nodes, workload
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.curve import amdahl
from volcano_elastic.simulator.figures import figures
from volcano_elastic.simulator.outcome import Outcome, Run, Stuck
from volcano_elastic.simulator.simulation import simulate
from volcano_elastic.simulator.trace import DEFAULT_SERIAL, TraceJob
from volcano_elastic.snapshot.snapshot import Queue

MOST_JOBS = 2000
_HOUR = 3600.0
_MOST_ROWS = 20
_MOVED = 60.0
"""Seconds by which a job's start must move to be named."""


@dataclass(frozen=True, slots=True)
class Past:
    """A recorded span of time."""

    begin: datetime
    end: datetime
    records: Sequence[JobRecord]
    capacity: int
    """The most there was of what the cluster counts in."""
    observed: float
    """Share of the time in which somebody looked."""


def replay(
    page: Page, past: Past, question: Question, go_on: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Return waits, use and jobs of the same time with and without the change.

    Queues and policies are today's in both; so a difference is the change's alone.

    Args:
        go_on: is called now and then, and raises what ends the work early.

    Raises:
        NoAnswer: says what was expected, or what is not known.
    """
    supposed = changes(page, question)
    added = sum(node.allocatable[page.resource] for node in supposed.nodes) // 1000
    before = _World(page, past, past.capacity, ())
    if not before.jobs:
        raise NoAnswer(
            f"expected jobs that ran since {past.begin:%Y-%m-%d %H:%M} UTC, found none on record"
        )
    if len(before.jobs) > MOST_JOBS:
        raise NoAnswer(
            f"expected at most {MOST_JOBS} jobs in that time, found {len(before.jobs)}: "
            "volcano-elastic simulate --history takes any number"
        )
    after = _World(page, past, past.capacity + added, supposed.queues)
    after.add(question)
    never = after.drop_what_never_fits(question)
    was, would = before.run(go_on), after.run(go_on)
    known = {run.job.name: run for run in was.runs}
    pairs = [(known[run.job.name], run) for run in would.runs if run.job.name in known]
    moved = sorted(
        ((new.wait - old.wait, old, new) for old, new in pairs),
        key=lambda row: (-abs(row[0]), row[1].job.name),
    )
    moved = [row for row in moved if abs(row[0]) > _MOVED][:_MOST_ROWS]
    seconds = (past.end - past.begin).total_seconds()
    return {
        "begin": round(past.begin.timestamp() * 1000),
        "end": round(past.end.timestamp() * 1000),
        "observed": round(min(1.0, past.observed), 3),
        "jobs": len(before.jobs),
        "leftOut": len(past.records) - len(before.jobs),
        "capacity": [before.config.total, after.config.total],
        "recordedWait": _recorded_wait(past, before.jobs),
        "all": _both(was, would, seconds),
        "queues": [
            {"name": name, **_both(was, would, seconds, name)}
            for name in sorted({run.job.queue for run in (*was.runs, *would.runs)})
        ],
        "moved": [
            {"job": _job(old), "queue": old.job.queue, "wait": [old.wait, new.wait]}
            for _, old, new in moved
        ],
        "never": [name.partition(" ")[0] for name in never if name != NEWCOMER][:_MOST_ROWS],
        "newcomer": _newcomer(question, would),
    }


class _World:
    """The recorded jobs on a cluster of so many GPUs."""

    def __init__(self, page: Page, past: Past, total: int, changed: Iterable[Queue]) -> None:
        if total <= 0:
            raise NoAnswer(f"expected {page.resource} on record in that time, found none")
        self.jobs = workload(past.records, past.begin, past.end, total)
        # One that is closed today had jobs then.
        queues = {queue.name: replace(queue, open=True) for queue in page.snapshot.queues}
        queues |= {queue.name: replace(queue, open=True) for queue in changed}
        for job in self.jobs:
            queues.setdefault(job.queue, Queue(job.queue))
        count, each = nodes(total)
        self.config = SimulationConfig(
            nodes=count,
            per_node=each,
            resource=page.resource,
            queues=tuple(queues.values()),
            policies=page.snapshot.policies,
            zero=past.begin,
        )

    def add(self, question: Question) -> None:
        """Let the job arrive that is asked about, right after those that were there; one whose
        minimum is more than there is never does."""
        total, least = self.config.total, question.least * question.each
        if question.into is None or least > total:
            return
        most = min(question.most, total // question.each) * question.each
        curve = amdahl(DEFAULT_SERIAL, total)
        self.jobs.append(
            TraceJob(
                name=NEWCOMER,
                queue=question.into,
                submit=1.0,
                gpus=least,
                work=question.hours * _HOUR * curve[least],
                curve=curve,
                min=least,
                max=most,
                unit=question.each,
            )
        )

    def drop_what_never_fits(self, question: Question) -> list[str]:
        """Take out the jobs whose minimum is beyond the cap or the cluster; return their names."""
        capped: frozenset[str] = frozenset()
        if question.queue is not None and question.capability is not None:
            capped = family(self.config.queues, question.queue)
        most = question.capability or 0

        def fits(job: TraceJob) -> bool:
            return job.min <= self.config.total and (job.queue not in capped or job.min <= most)

        never = [job.name for job in self.jobs if not fits(job)]
        self.jobs = [job for job in self.jobs if fits(job)]
        return never

    def run(self, go_on: Callable[[], None]) -> Outcome:
        if not self.jobs:
            return Outcome(self.config, ())
        planner = Planner(reports=False)

        def plan(*asked: Any) -> Any:
            go_on()
            return planner.plan(*asked)

        try:
            return simulate(self.jobs, self.config, plan)
        except Stuck as stuck:
            raise NoAnswer(
                f"expected that all jobs end, found that some never would: {stuck}"
            ) from stuck


def _both(
    was: Outcome, would: Outcome, seconds: float, queue: str | None = None
) -> dict[str, list[Any]]:
    """Return [before, after] of each figure; of one queue, or of all."""
    found: dict[str, list[Any]] = {"jobs": [], "wait": [], "end": [], "held": []}
    for outcome in (was, would):
        runs = [
            run
            for run in outcome.runs
            if run.job.name != NEWCOMER and queue in (None, run.job.queue)
        ]
        found["jobs"].append(len(runs))
        found["wait"].append(fmean(run.wait for run in runs) if runs else None)
        found["end"].append(fmean(run.completion for run in runs) if runs else None)
        found["held"].append(
            sum(
                part.size * max(0.0, min(part.end, seconds) - part.begin)
                for run in runs
                for part in run.segments
            )
            / _HOUR
        )
    if queue is None:
        found["idleWanted"] = [
            figures(one, seconds).idle_while_wanted_hours if one.runs else 0.0
            for one in (was, would)
        ]
    return found


def _recorded_wait(past: Past, jobs: Iterable[TraceJob]) -> float:
    """Return the mean seconds that the replayed jobs waited in truth, within the span."""
    names = {job.name for job in jobs}
    waits = [
        max(timedelta(0), record.started - max(record.created, past.begin)).total_seconds()
        for record in past.records
        if record.started is not None and f"{record.job} {record.uid}" in names
    ]
    return fmean(waits)


def _newcomer(question: Question, would: Outcome) -> dict[str, Any] | None:
    if question.into is None:
        return None
    run = next((run for run in would.runs if run.job.name == NEWCOMER), None)
    if run is None:
        return {"starts": False}
    return {"starts": True, "wait": run.wait, "end": run.completion}


def _job(run: Run) -> str:
    return run.job.name.partition(" ")[0]
