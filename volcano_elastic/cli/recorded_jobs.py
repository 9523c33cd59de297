"""Reads the cluster's own past for `simulate --history`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from volcano_elastic.cli.observation import Trouble
from volcano_elastic.forecast.job_record import JobRecord
from volcano_elastic.forecast.workload import nodes, workload

if TYPE_CHECKING:
    from volcano_elastic.simulator.trace import TraceJob


@dataclass(frozen=True, slots=True)
class RecordedJobs:
    """Jobs of a span of time, and what there was of GPUs."""

    begin: datetime
    end: datetime
    records: Sequence[JobRecord]
    capacity: int

    def cluster(self, count: int | None, per_node: int | None) -> tuple[int, int]:
        """Return (nodes, GPUs a node): those given, else as there were."""
        if count is not None and per_node is not None:
            return count, per_node
        if self.capacity <= 0:
            raise Trouble("how many GPUs there were is not known; give --nodes, --gpus-per-node")
        each = per_node or (
            nodes(self.capacity)[1] if count is None else -(-self.capacity // count)
        )
        return count or max(1, self.capacity // each), each

    def jobs(self, total: int) -> list[TraceJob]:
        """Return the jobs that ran, for a cluster of so many GPUs."""
        found = workload(self.records, self.begin, self.end, total)
        if not found:
            raise Trouble(
                f"no job is known to have run since {self.begin:%Y-%m-%d %H:%M} UTC; run "
                "`volcano-elastic dashboard`, which notes them, or give a longer --since"
            )
        return found


def recorded(database: str | None, since: timedelta) -> RecordedJobs:
    """Return what the dashboard's database has of the time since then.

    Raises:
        Trouble: it can't be read, or has nothing.
    """
    from volcano_elastic.cli.report import read_history

    end = datetime.now(UTC)
    kept = read_history(database, end - since, end)
    return RecordedJobs(end - since, end, kept.records, kept.capacity)
