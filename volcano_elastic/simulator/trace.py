"""A trace: which jobs come when, how much work they bring, and how far they stretch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from volcano_elastic.simulator.curve import Curve, CurveTable, amdahl
from volcano_elastic.simulator.elasticity import Elasticity, ElasticityError
from volcano_elastic.simulator.row import columns, rows

DEFAULT_SERIAL = 0.036
"""Serial share in Amdahl's law, where the trace says nothing of speed: the middle of what was
measured for the models of the Pollux study (.009 to .058)."""
_MOST = 1e9
"""Greatest number that a trace may hold: 31 years, where it is seconds."""


class TraceError(ValueError):
    """A trace that cannot be simulated; names the line."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    name: str
    queue: str
    submit: float
    """Seconds since the trace's zero."""
    gpus: int
    """The size it asked for, and holds under rigid scheduling."""
    work: float
    """In the curve's unit."""
    curve: Curve
    min: int
    max: int
    unit: int = 1
    each: int = 1000
    """Thousandths of the resource that a worker holds."""

    @property
    def length(self) -> float:
        """Seconds it takes at its best size."""
        return self.work / max(self.curve[self.min : self.max + 1])

    @property
    def area(self) -> float:
        """The least worker-seconds it takes: work times min over sizes of size / speed."""
        return self.work * min(k / self.curve[k] for k in range(1, self.max + 1) if self.curve[k])


def read_trace(
    lines: Sequence[str],
    name: str,
    *,
    cluster: int,
    elasticity: Elasticity,
    table: CurveTable | None = None,
    serial: float = DEFAULT_SERIAL,
) -> dict[str, list[TraceJob]]:
    """Jobs by workload ("" where the trace has no such column), in order of submission.

    Columns: submit_s; gpus or tuned_gpus; duration_s (at that size) or iterations (with app, and a
    table of speeds); and perhaps job, queue, workload, min, max (which overrule `elasticity`).

    Args:
        cluster: GPUs there are; no curve and no job goes beyond.

    Raises:
        TraceError, RowError: name the line.
    """
    names = columns(lines)
    read = _Reader(
        size="gpus" if "gpus" in names else "tuned_gpus",
        work="duration_s" if "duration_s" in names else "iterations",
        cluster=cluster,
        elasticity=elasticity,
        table=table,
        law=amdahl(serial, cluster),
    )
    if not {"submit_s", read.size, read.work} <= set(names):
        raise TraceError(
            f"{name}, line 1: expected the columns submit_s, gpus (or tuned_gpus) and duration_s "
            f"(or iterations), found {', '.join(names) or 'nothing'}"
        )
    found: dict[str, dict[str, TraceJob]] = {}
    for row in rows(lines, name):
        job = read.job(row.values, row.where, row.values.get("job") or f"line-{row.line}")
        workload = found.setdefault(row.values.get("workload") or "", {})
        if job.name in workload:
            raise TraceError(f"{row.where}: job {job.name} is there twice")
        workload[job.name] = job
    if not found:
        raise TraceError(f"{name}: expected jobs, found none below the columns' names")
    return {
        workload: sorted(jobs.values(), key=lambda job: job.submit)
        for workload, jobs in found.items()
    }


@dataclass(frozen=True, slots=True)
class _Reader:
    size: str
    """Column of what the job asked for."""
    work: str
    """Column of its work."""
    cluster: int
    elasticity: Elasticity
    table: CurveTable | None
    law: Curve

    def job(self, row: Mapping[str, str], where: str, name: str) -> TraceJob:
        gpus = self._size(row, self.size, where)
        amount = _number(row, self.work, where)
        if amount == 0:
            raise TraceError(f"{where}: expected {self.work} above 0, found {row[self.work]}")
        curve = self._curve(row, where)
        try:
            sizes = self.elasticity(gpus, self.cluster, curve)
        except ElasticityError as error:
            raise TraceError(f"{where}: {error}") from None
        least = self._size(row, "min", where) if row.get("min") else sizes.min
        most = self._size(row, "max", where) if row.get("max") else sizes.max
        if least > most:
            raise TraceError(f"{where}: expected min of at most max {most}, found {least}")
        return TraceJob(
            name=name,
            queue=row.get("queue") or "default",
            submit=_number(row, "submit_s", where),
            gpus=gpus,
            work=amount * curve[gpus] if self.work == "duration_s" else amount,
            curve=curve,
            min=least,
            max=most,
            unit=sizes.unit if least % sizes.unit == 0 and most % sizes.unit == 0 else 1,
        )

    def _size(self, row: Mapping[str, str], column: str, where: str) -> int:
        value = _number(row, column, where)
        if not 1 <= value <= self.cluster or value != int(value):
            raise TraceError(
                f"{where}: expected {column} to be a whole number from 1 to the cluster's "
                f"{self.cluster}, found {row[column]}"
            )
        return int(value)

    def _curve(self, row: Mapping[str, str], where: str) -> Curve:
        if self.table is None:
            if self.work == "duration_s":
                return self.law
            raise TraceError(
                f"{where}: iterations say nothing without seconds a step; give a table (--speed)"
            )
        app = row.get("app") or ""
        if not app and self.work == "duration_s":
            return self.law
        curve = self.table.curve(app, row.get("global_batch") or "", self.cluster)
        if curve is None:
            raise TraceError(f"{where}: the table of speeds has nothing for app {app!r}")
        return curve


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column] or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise TraceError(
            f"{where}: expected {column} to be a number from 0 to {_MOST:g}, found {row[column]!r}"
        )
    return value
