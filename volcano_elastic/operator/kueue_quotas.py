"""Keeps what Kueue's objects say, object by object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volcano_elastic.adapters import kueue
from volcano_elastic.adapters.kueue import Workload
from volcano_elastic.adapters.quota_tree import Kueue
from volcano_elastic.kube.resource import Object, Resource

CLUSTER_QUEUES = Resource(
    kueue.GROUP, kueue.VERSION, "clusterqueues", "ClusterQueue", namespaced=False
)
COHORTS = Resource(kueue.GROUP, kueue.VERSION, "cohorts", "Cohort", namespaced=False)
LOCAL_QUEUES = Resource(kueue.GROUP, kueue.VERSION, "localqueues", "LocalQueue")
WORKLOADS = Resource(kueue.GROUP, kueue.VERSION, "workloads", "Workload")
KINDS = (CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, WORKLOADS)
_READERS: dict[str, Callable[[Object], Any]] = {
    CLUSTER_QUEUES.kind: kueue.cluster_queue,
    COHORTS.kind: kueue.cohort,
    LOCAL_QUEUES.kind: kueue.local_queue,
    WORKLOADS.kind: kueue.workload,
}


class KueueQuotas:
    """Takes each change of an object of `KINDS`; `view` says what follows."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Any]] = {kind: {} for kind in _READERS}
        self._view: Kueue | None = None

    def change(self, kind: str, key: str, obj: Object | None) -> bool:
        """Take the object, or that it is gone; return whether that changed anything.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it can't be read.
        """
        held, found = self._held[kind], None if obj is None else _READERS[kind](obj)
        if held.get(key) == found:
            return False
        if found is None:
            del held[key]
        else:
            held[key] = found
        self._view = None
        return True

    def view(self) -> Kueue:
        """Return all of them, the same object until something changes."""
        if self._view is None:
            owned: dict[str, list[Workload]] = {}
            for workload in self._held[WORKLOADS.kind].values():
                owned.setdefault(workload.owner, []).append(workload)
            self._view = Kueue(
                dict(self._held[CLUSTER_QUEUES.kind]),
                dict(self._held[COHORTS.kind]),
                dict(self._held[LOCAL_QUEUES.kind]),
                owned,
            )
        return self._view
