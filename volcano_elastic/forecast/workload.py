"""Jobs that were recorded, as a workload that can be simulated again. A worker is one GPU there."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from math import gcd

from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.past import length
from volcano_elastic.simulator.curve import Curve, amdahl
from volcano_elastic.simulator.trace import DEFAULT_SERIAL, TraceJob

_LEAST_SECONDS = 1.0


def workload(
    records: Iterable[JobRecord], begin: datetime, end: datetime, total: int
) -> list[TraceJob]:
    """Return the jobs that ran between two times, each with the work that was done meanwhile.

    One that ran before brings what was done since then, and comes at once. Left out are jobs
    without GPUs, those that never started, and those that ask for more than there is.

    Args:
        total: GPUs there are.
    """
    curve = amdahl(DEFAULT_SERIAL, total)
    found = [_job(record, begin, end, curve) for record in records]
    return sorted((job for job in found if job is not None), key=lambda job: (job.submit, job.name))


def _job(record: JobRecord, begin: datetime, end: datetime, curve: Curve) -> TraceJob | None:
    each = -(-record.each // 1000)
    least, most = record.min * each, min(record.max, (len(curve) - 1) // max(each, 1)) * each
    until = min(record.ended or end, end)
    if record.each <= 0 or record.started is None or least > most or record.started >= end:
        return None
    ran = ((record.ended or end) - record.started).total_seconds()
    within = (until - max(record.started, begin)).total_seconds()
    if within <= 0:
        return None
    share = within / ran
    asked = min(max((record.asked or record.min) * each, least), most)
    return TraceJob(
        name=f"{record.job} {record.uid}",
        queue=record.queue,
        submit=max(0.0, (record.created - begin).total_seconds()),
        gpus=asked,
        work=max(_LEAST_SECONDS, length(record, end) * share) * curve[least],
        curve=curve,
        min=least,
        max=most,
        unit=each,
    )


def nodes(total: int) -> tuple[int, int]:
    """Return (nodes, GPUs a node) of a cluster of so many, with the largest usual nodes."""
    per_node = gcd(total, 8)
    return total // per_node, per_node
