"""The past in figures: use by queue, waits, goodput, what elasticity saved, worst jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from volcano_elastic.dashboard.model.change import Change, Kind
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.workload import nodes, workload
from volcano_elastic.pytorchjob.goodput import PRODUCTIVE, USES
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.comparison import Comparison, compare
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.figures import percentile
from volcano_elastic.simulator.outcome import Stuck

_WORST = 10
_HOUR = 3600.0
_PROCESS_HOUR = 3_600_000
_MENTIONED = 0.05
"""The part of a job's time from which a use is named."""


@dataclass(frozen=True, slots=True)
class QueueWeek:
    """One queue; hours are of GPUs, or of what the cluster counts in."""

    name: str
    held: float
    running: float
    idle_wanted: float
    jobs: int
    """That came."""
    wait: float | None
    """Median seconds to the start; None where nobody came."""
    wait_p90: float | None
    goodput: float | None
    """Share of its processes' time in which training went on; None where nobody told."""


@dataclass(frozen=True, slots=True)
class WorstJob:
    job: str
    queue: str
    lost: float
    """GPU-hours."""
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Week:
    """All of a report."""

    begin: datetime
    end: datetime
    observed: float
    """Share of the time in which a dashboard looked."""
    capacity: float
    """GPU-hours that there were in that time."""
    held: float
    running: float
    idle_wanted: float
    all: QueueWeek
    queues: tuple[QueueWeek, ...]
    worst: tuple[WorstJob, ...]
    replay: Comparison | None
    no_replay: str
    """Why there is none."""
    buckets: tuple[Mapping[str, Any], ...]

    @property
    def saved(self) -> float | None:
        """GPU-hours that rigid gangs would have left idle while jobs wanted them, beyond those that
        elastic ones leave; None without a replay."""
        if self.replay is None or self.replay.elastic is None:
            return None
        elastic = self.replay.elastic.idle_while_wanted_hours
        return self.replay.rigid.idle_while_wanted_hours - elastic


def week(
    begin: datetime,
    end: datetime,
    buckets: Sequence[Mapping[str, Any]],
    records: Sequence[JobRecord],
    changes: Iterable[Change],
) -> Week:
    """Return the figures of the time from `begin` to `end`.

    Args:
        buckets: of one length, in order, in the form of `Bucket.shown`.
        records: of jobs that were there.
        changes: of those jobs.
    """
    hours = [bucket["ms"] / _PROCESS_HOUR for bucket in buckets]
    pairs = list(zip(buckets, hours, strict=True))
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for bucket, length in pairs:
        for name, (held, running, _, idle_wanted, *_rest) in bucket["queues"].items():
            for i, amount in enumerate((held, running, idle_wanted)):
                sums[name][i] += amount * length
    there = [record for record in records if record.ended is None or record.ended >= begin]
    names = sorted({*sums, *(record.queue for record in there)})
    queues = [
        _queue(name, sums[name], [r for r in there if r.queue == name], begin, end)
        for name in names
    ]
    total = [sum(amounts) for amounts in zip(*sums.values(), strict=True)] or [0.0, 0.0, 0.0]
    replay, no_replay = _replay(begin, end, buckets, there)
    return Week(
        begin=begin,
        end=end,
        observed=sum(hours) / max((end - begin) / timedelta(hours=1), 1e-9),
        capacity=sum(bucket["capacity"] * length for bucket, length in pairs),
        held=total[0],
        running=total[1],
        idle_wanted=sum(bucket["idleWanted"] * length for bucket, length in pairs),
        all=_queue("all", total, there, begin, end),
        queues=tuple(sorted(queues, key=lambda queue: (-queue.held, queue.name))),
        worst=worst(there, changes, begin, end),
        replay=replay,
        no_replay=no_replay,
        buckets=tuple(buckets),
    )


def _queue(
    name: str, sums: Sequence[float], records: Sequence[JobRecord], begin: datetime, end: datetime
) -> QueueWeek:
    came = [record for record in records if begin <= record.created < end]
    waits = sorted(_waited(record, begin, end) for record in came)
    spent = sum(sum(record.spent.values()) for record in records)
    kept = sum(record.spent.get(PRODUCTIVE, 0) for record in records)
    return QueueWeek(
        name=name,
        held=sums[0],
        running=sums[1],
        idle_wanted=sums[2],
        jobs=len(came),
        wait=median(waits) if waits else None,
        wait_p90=percentile(waits, 0.9) if waits else None,
        goodput=kept / spent if spent else None,
    )


def _waited(record: JobRecord, begin: datetime, end: datetime) -> float:
    """Seconds within the span; so far, if it waits still."""
    until = min(record.started or record.ended or end, end)
    return max(0.0, (until - max(record.created, begin)).total_seconds())


def worst(
    records: Iterable[JobRecord], changes: Iterable[Change], begin: datetime, end: datetime
) -> tuple[WorstJob, ...]:
    """Return the jobs that lost most GPU-hours: waiting for their minimum, in time that was no
    training, or by failing."""
    failures: dict[str, Change] = {}
    for change in changes:
        if change.kind is Kind.FAILED:
            failures[change.uid] = change
    found = (_lost(record, failures.get(record.uid), begin, end) for record in records)
    ordered = sorted((one for one in found if one.lost > 0), key=lambda one: (-one.lost, one.job))
    return tuple(ordered[:_WORST])


def _lost(record: JobRecord, failure: Change | None, begin: datetime, end: datetime) -> WorstJob:
    least = record.min * record.each / 1000
    waited = _waited(record, begin, end)
    why, lost = [], waited / _HOUR * least
    if waited >= 1:
        still = "" if record.started else "; it has not started"
        why.append(f"waited {waited / _HOUR:.2f} h for its minimum of {least:g}{still}")
    if failure is not None:
        lost += record.hours
        why.append(
            f"failed after {record.hours:.2f} GPU-hours: {failure.message or failure.reason}"
        )
    else:
        all_time = sum(record.spent.values())
        wasted = {use: ms for use, ms in record.spent.items() if use != PRODUCTIVE and ms}
        lost += sum(wasted.values()) / _PROCESS_HOUR
        named = [
            f"{USES.get(use, use)} {100 * ms / all_time:.0f} %"
            for use, ms in sorted(wasted.items(), key=lambda item: -item[1])
            if ms >= _MENTIONED * all_time
        ]
        if named:
            why.append("of its time: " + ", ".join(named))
    return WorstJob(record.job, record.queue, lost, tuple(why))


def _replay(
    begin: datetime,
    end: datetime,
    buckets: Sequence[Mapping[str, Any]],
    records: Sequence[JobRecord],
) -> tuple[Comparison | None, str]:
    total = round(max((bucket["capacity"] for bucket in buckets), default=0.0))
    jobs = workload(records, begin, end, total) if total else []
    if not jobs:
        return None, "no job is known to have run"
    count, per_node = nodes(total)
    config = SimulationConfig(count, per_node)
    window = (end - begin).total_seconds()
    try:
        return compare(jobs, config, Planner(reports=False).plan, window=window), ""
    except Stuck as stuck:
        return None, str(stuck)
