"""The page at one moment: what all viewers get, and the lists that each may ask for.

Made once a look at the cluster, whoever is there to see it; lists are made when first asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.dashboard.model.gpu_use import (
    GpuUse,
    PodCount,
    count_pods,
    gpu_use,
    resource_of,
)
from volcano_elastic.dashboard.model.job_row import JobRow, Sort, State, job_rows, ordered
from volcano_elastic.dashboard.model.node_row import NodeRow, node_rows
from volcano_elastic.dashboard.model.queue_row import MOST, queue_rows
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.snapshot.snapshot import Snapshot

_TOP = 20
"""Jobs that wait and nodes that are out that everybody is sent."""


class Page:
    """Shows a snapshot and its plan.

    Args:
        before: the last one: its counts are used again where no pod changed.
    """

    def __init__(
        self, snapshot: Snapshot, plan: Plan, time: datetime, before: Page | None = None
    ) -> None:
        self.snapshot, self.plan, self.time = snapshot, plan, time
        self.resource = resource_of(snapshot.nodes)
        self.counts = self._counts(before)
        self.use: GpuUse = gpu_use(snapshot, plan, self.counts, self.resource)

    def _counts(self, before: Page | None) -> PodCount:
        if (
            before is not None
            and before.resource == self.resource
            and before.snapshot.pods is self.snapshot.pods
            and before.snapshot.jobs is self.snapshot.jobs
            and before.snapshot.gangs is self.snapshot.gangs
        ):
            return before.counts
        return count_pods(self.snapshot, self.resource)

    @cached_property
    def jobs(self) -> tuple[JobRow, ...]:
        return job_rows(self.snapshot, self.plan, self.counts, self.resource)

    @cached_property
    def nodes(self) -> tuple[NodeRow, ...]:
        return node_rows(self.snapshot, self.counts, self.resource)

    def deserved(self) -> Mapping[str, int]:
        """Return in thousandths what queues deserve that state it."""
        return self._stated("deserved")

    def guarantee(self) -> Mapping[str, int]:
        """Return in thousandths what is guaranteed to queues that state it."""
        return self._stated("guarantee")

    def _stated(self, field: str) -> dict[str, int]:
        return {
            queue.name: amounts[self.resource]
            for queue in self.snapshot.queues
            if self.resource in (amounts := getattr(queue, field) or {})
        }

    def overview(self) -> dict[str, Any]:
        """Return what is sent to every viewer: of bounded size, however large the cluster is."""
        waiting = [row for row in self.jobs if row.state is State.WAITING]
        counts = Counter(row.queue for row in waiting)
        rows = queue_rows(self.snapshot, self.plan, self.use, counts)
        out = [node for node in self.nodes if node.out]
        use = self.use
        return {
            "time": moment.micro_timestamp(self.time),
            "resource": use.resource,
            "capacity": use.capacity / 1000,
            "held": sum(queue.held for queue in use.queues.values()) / 1000,
            "running": sum(queue.running for queue in use.queues.values()) / 1000,
            "idle": use.idle / 1000,
            "keptOut": use.kept_out / 1000,
            "idleWanted": use.idle_wanted / 1000,
            "jobs": len(self.jobs),
            "waitingJobs": len(waiting),
            "nodes": len(self.nodes),
            "nodesOut": len(out),
            "queues": rows[:MOST],
            "moreQueues": max(0, len(rows) - MOST),
            "waiting": [row.shown() for row in ordered(waiting, Sort.WAITING)[:_TOP]],
            "out": [row.shown() for row in out[:_TOP]],
            "next": [
                {
                    "job": decision.job,
                    "from": decision.old,
                    "to": decision.new,
                    "message": decision.message,
                    "dryRun": decision.dry_run,
                }
                for decision in self.plan.decisions[:_TOP]
            ],
        }
