"""Keeps the nodes that jobs' coordinators leave out of training, for the reconciles to act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.failure_report import Exclusion
from volcano_elastic.pytorchjob.observed import NodeFailure


class FailedNodes:
    """In memory only: what a job acts on is in its status, and its coordinator tells the rest anew.

    Args:
        clock: a failure is dated by when it was first heard of.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[str, dict[str, NodeFailure]]] = {}
        """By job's key: its uid, and failures by node."""
        self._tell: Callable[[str], None] = lambda key: None
        cluster.jobs.on_change(self._job_changed)

    def on_news(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the key of each job that a further node has failed."""
        self._tell = tell

    def hear(self, job: PyTorchJob, excluded: Sequence[Exclusion]) -> None:
        """Takes what the job's coordinator has just said, all of it."""
        before = self.of(job)
        found = {
            one.node: before.get(one.node) or NodeFailure(one.reason, self._clock())
            for one in excluded
            if one.node
        }
        self._failed[job.key] = (job.uid, found)
        if found.keys() - before.keys():
            self._tell(job.key)

    def of(self, job: PyTorchJob) -> Mapping[str, NodeFailure]:
        """Return the nodes that its coordinator leaves out, by name."""
        uid, found = self._failed.get(job.key, ("", {}))
        return found if uid == job.uid else {}

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._failed.pop(key_of(old), None)
