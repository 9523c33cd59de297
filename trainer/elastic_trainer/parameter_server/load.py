"""Load: what a parameter server has to do, and what it takes for that. Pure; clocks are arguments.

Times are of all requests; which buckets and ids are asked for is counted of each eighth one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.id_samples import IdSamples
from elastic_trainer.embeddings.table import Table
from elastic_trainer.embeddings.table_meter import measure
from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.table_load import TableLoad, read_table

WINDOW_SECONDS = 10.0
"""Rates are of so long, and what was before counts half as much with each further window."""
SAMPLED = 8
"""One of so many requests is looked at for its buckets and ids."""
_DURATIONS = 1024

Counts = NDArray[np.int64]
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Usage:
    """Use of a machine by a process, and by all."""

    cpu_seconds: float = 0.0
    """Use of the process, since its beginning."""
    memory: int = 0
    """Bytes of the process that are resident."""
    machine_cpu_seconds: float = 0.0
    machine_cpus: int = 0
    machine_memory: int = 0
    machine_memory_free: int = 0
    """Bytes that a process could still get."""


@dataclass(frozen=True)
class OperationLoad:
    """Requests of one kind."""

    calls: int = 0
    """Since the server's beginning."""
    rows: int = 0
    calls_per_second: float = 0.0
    rows_per_second: float = 0.0
    p50_seconds: float = 0.0
    p99_seconds: float = 0.0


@dataclass(frozen=True)
class ServerLoad:
    """Report of a server on itself, each few seconds. Rates are of its last window."""

    cpus: float = 0.0
    memory: int = 0
    machine_cpus: int = 0
    machine_cpus_used: float = 0.0
    machine_memory: int = 0
    machine_memory_free: int = 0
    steps_per_second: float = 0.0
    """Sum over all workers."""
    operations: Mapping[str, OperationLoad] = field(default_factory=dict)
    tables: Mapping[str, TableLoad] = field(default_factory=dict)

    def as_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def read_load(text: str) -> ServerLoad:
    """Raises ValueError where that is no load."""
    try:
        found = json.loads(text)
        operations = {
            str(name): OperationLoad(**one) for name, one in found.pop("operations").items()
        }
        tables = {str(name): read_table(one) for name, one in found.pop("tables").items()}
        return ServerLoad(**found, operations=operations, tables=tables)
    except (TypeError, KeyError, AttributeError) as error:
        names = ", ".join(one.name for one in fields(ServerLoad))
        raise ValueError(f"no load of a server ({error!r}): expected {names}") from error


class _Operation:
    def __init__(self) -> None:
        self.calls = self.rows = 0
        self.told = (0, 0)
        self.durations: deque[float] = deque(maxlen=_DURATIONS)


class Meter:
    """Counts what a server does.

    Args:
        now: seconds, of the clock of all its calls.
        usage: until then, such as by what the process has imported.
    """

    def __init__(self, now: float, usage: Usage) -> None:
        self._operations: dict[str, _Operation] = {}
        self._requests = 0
        self._of_buckets: Counts = np.zeros(BUCKETS, dtype=np.int64)
        self.bucket_rates: Rates = np.zeros(BUCKETS)
        """Rows that were asked for or updated a second, by bucket, as `load` found them last."""
        self._samples: dict[str, IdSamples] = {}
        self._updated: dict[str, int] = {}
        self._since, self._usage, self._steps = now, usage, 0
        self.last: ServerLoad | None = None
        """The load that `load` returned last."""

    def took(self, operation: str, rows: int, seconds: float) -> None:
        """Take in that a request was served."""
        found = self._operations.setdefault(operation, _Operation())
        found.calls += 1
        found.rows += rows
        found.durations.append(seconds)

    def asked(self, table: str, ids: Ids, seen: Counts | None = None) -> None:
        """Take in which ids a request was about.

        Args:
            seen: how often each came in the samples, in a push.
        """
        self._requests += 1
        if self._requests % SAMPLED or not len(ids):
            return
        self._of_buckets += SAMPLED * np.bincount(buckets(ids), minlength=BUCKETS)
        if seen is None:
            return
        self._samples.setdefault(table, IdSamples()).add(ids, seen)

    def load(
        self, now: float, usage: Usage, tables: Mapping[str, Table], steps: int
    ) -> ServerLoad | None:
        """Return the load of the last window; None before the first one has ended.

        Args:
            steps: of all workers, so far.
        """
        seconds = now - self._since
        if seconds < WINDOW_SECONDS:
            return self.last
        before, first = self._usage, self.last is None
        self._since, self._usage = now, usage
        rates = self._of_buckets / seconds
        self._of_buckets = np.zeros(BUCKETS, dtype=np.int64)
        self.bucket_rates = rates if first else (rates + self.bucket_rates) / 2
        stepped, self._steps = max(0, steps - self._steps), steps
        self.last = ServerLoad(
            cpus=max(0.0, usage.cpu_seconds - before.cpu_seconds) / seconds,
            memory=usage.memory,
            machine_cpus=usage.machine_cpus,
            machine_cpus_used=max(0.0, usage.machine_cpu_seconds - before.machine_cpu_seconds)
            / seconds,
            machine_memory=usage.machine_memory,
            machine_memory_free=usage.machine_memory_free,
            steps_per_second=stepped / seconds,
            operations={
                name: _told(one, seconds) for name, one in sorted(self._operations.items())
            },
            tables={
                name: self._of_table(name, one, seconds) for name, one in sorted(tables.items())
            },
        )
        for samples in self._samples.values():
            samples.halve()
        return self.last

    def _of_table(self, name: str, table: Table, seconds: float) -> TableLoad:
        updated = table.counters.updated
        before, self._updated[name] = self._updated.get(name, 0), updated
        samples = self._samples.setdefault(name, IdSamples())
        return measure(table, samples, max(0, updated - before) / seconds)


def _told(operation: _Operation, seconds: float) -> OperationLoad:
    calls, rows = operation.told
    operation.told = operation.calls, operation.rows
    durations = np.array(operation.durations) if operation.durations else np.zeros(1)
    operation.durations.clear()
    median, slow = np.percentile(durations, (50, 99)).tolist()
    return OperationLoad(
        operation.calls,
        operation.rows,
        (operation.calls - calls) / seconds,
        (operation.rows - rows) / seconds,
        median,
        slow,
    )


def skew(loads: Mapping[str, ServerLoad]) -> float:
    """Return how many times the mean the busiest of several servers serves, in rows a second; 1
    where none serves any."""
    return table_load.skew(
        [sum(one.rows_per_second for one in load.operations.values()) for load in loads.values()]
    )
