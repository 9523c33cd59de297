"""Gazer: what all servers of a job say of themselves, and its workers of the training, as one JSON
answer, as Prometheus' metrics, and as TensorBoard's scalars. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.exposition import Metric
from elastic_trainer.parameter_server.load import ServerLoad, skew

MOST_OBSERVED = 64
"""Metrics of a worker's own."""
MOST_WORKERS = 4096
FORGET_SECONDS = 600.0


@dataclass
class Observations:
    """The newest values of workers' own metrics."""

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    """By worker, then by name."""
    heard: dict[str, float] = field(default_factory=dict)

    def take(self, worker: str, told: Mapping[str, float], now: float) -> None:
        """Raises ValueError where these are no metrics."""
        if len(told) > MOST_OBSERVED:
            raise ValueError(f"{len(told)} metrics: expected {MOST_OBSERVED} at most")
        for name, value in told.items():
            if not name or len(name) > 100 or not math.isfinite(value):
                raise ValueError(f"metric {name!r} is {value}: expected a name and a finite number")
        gone = [one for one, heard in self.heard.items() if now - heard > FORGET_SECONDS]
        for one in gone:
            del self.heard[one], self.values[one]
        if worker not in self.heard and len(self.heard) >= MOST_WORKERS:
            raise ValueError(f"metrics of {MOST_WORKERS} workers already")
        known = {**self.values.get(worker, {}), **told}
        self.values[worker] = dict(list(known.items())[-MOST_OBSERVED:])
        self.heard[worker] = now

    def means(self) -> dict[str, float]:
        """Return each metric's mean of all workers that tell it."""
        by_name: dict[str, list[float]] = {}
        for told in self.values.values():
            for name, value in told.items():
                by_name.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in sorted(by_name.items())}


@dataclass
class Times:
    """Mean times since they were last asked for."""

    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = total + seconds, count + 1

    def means(self) -> dict[str, float]:
        found = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums.clear()
        return found


def status(
    job: str,
    loads: Mapping[str, ServerLoad],
    buckets: Mapping[str, int],
    observed: Observations,
    lost: str,
    slow: Iterable[str] = (),
) -> dict[str, Any]:
    """Return all as JSON values.

    Args:
        loads: by address of the server.
        buckets: how many each server holds.
        lost: why rows are lost; empty: none are.
        slow: addresses of servers that take much longer for a row than the others.
    """
    steps = max((one.steps_per_second for one in loads.values()), default=0.0)
    return {
        "job": job,
        "servers": {
            address: {"buckets": count, **(asdict(loads[address]) if address in loads else {})}
            for address, count in sorted(buckets.items())
        },
        "rows": sum(table.rows for one in loads.values() for table in one.tables.values()),
        "bytes": sum(table.bytes for one in loads.values() for table in one.tables.values()),
        "steps_per_second": steps,
        "skew": skew(loads),
        "slow": sorted(slow),
        "lost": lost,
        "observed": observed.means(),
    }


def scalars(told: Mapping[str, Any]) -> dict[str, float]:
    """Return TensorBoard's scalars of a `status`: `gazer/SERVER/cpus` and so on."""
    found = {
        f"gazer/{name}": float(told.get(name) or 0.0)
        for name in ("rows", "bytes", "steps_per_second", "skew")
    }
    for address, one in (told.get("servers") or {}).items():
        where = f"gazer/{address.replace(':', '_')}"
        for name in ("cpus", "memory", "buckets"):
            found[f"{where}/{name}"] = float(one.get(name) or 0.0)
        for operation, load in (one.get("operations") or {}).items():
            for name in ("rows_per_second", "p50_seconds", "p99_seconds"):
                found[f"{where}/{operation}/{name}"] = float(load.get(name) or 0.0)
    for name, value in (told.get("observed") or {}).items():
        found[f"observed/{name}"] = float(value)
    return found


def metrics(address: str, load: ServerLoad, held: int, copies: int) -> list[Metric]:
    """Return Prometheus' metrics of one server.

    Args:
        held: how many buckets it holds.
        copies: of other servers that it keeps.
    """
    of = (("server", address),)
    free = load.machine_memory_free
    own = [
        ("ps_cpus", "CPUs that the server's process uses.", load.cpus),
        ("ps_memory_bytes", "Resident memory of its process.", load.memory),
        ("ps_machine_cpus", "CPUs of its machine in use.", load.machine_cpus_used),
        ("ps_machine_memory_free_bytes", "Memory of its machine that is available.", free),
        ("ps_buckets", "Buckets that it holds.", held),
        ("ps_copies", "Servers of whose rows it keeps a copy.", copies),
        ("ps_steps_per_second", "Steps of all workers.", load.steps_per_second),
    ]
    found = [Metric(name, text, value, of) for name, text, value in own]
    by_operation = [
        ("ps_requests_total", "Requests served.", "calls"),
        ("ps_request_rows_total", "Rows in them.", "rows"),
        ("ps_request_p50_seconds", "Median time of a request.", "p50_seconds"),
        ("ps_request_p99_seconds", "Time that one in a hundred exceeds.", "p99_seconds"),
    ]
    for name, text, attribute in by_operation:
        for operation, one in load.operations.items():
            labels = (*of, ("operation", operation))
            found.append(Metric(name, text, getattr(one, attribute), labels))
    tables = [((*of, ("table", name)), one) for name, one in load.tables.items()]
    found += table_load.metrics("ps_", tables)
    return found


def job_metrics(told: Mapping[str, Any]) -> list[Metric]:
    """Return Prometheus' metrics of a `status`, which the first server tells beside its own."""
    found = [
        Metric("ps_skew", "Rows a second of the busiest server, in means of all.", told["skew"]),
        Metric("ps_servers", "Parameter servers.", len(told["servers"])),
        Metric("ps_slow_servers", "Of them, slow ones.", len(told["slow"])),
        Metric("ps_rows_lost", "Whether rows were lost.", bool(told["lost"])),
    ]
    text = "A metric of the training's own, the mean of its workers."
    found += [
        Metric("observed", text, value, (("name", name),))
        for name, value in told["observed"].items()
    ]
    return found
