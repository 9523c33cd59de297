"""Keeps in which pods the kernel killed a rank for memory while the container goes on, as the jobs'
coordinators tell, for the reconciles to act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import CONTAINER, PyTorchJob
from volcano_elastic.api.role import elastic
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.failure_report import Failure
from volcano_elastic.pytorchjob.label import replica_name
from volcano_elastic.pytorchjob.out_of_memory import STEADY

_Kill = tuple[str, datetime]
"""Uid of the pod, empty where it is gone, and when the kill was first heard of."""


class MemoryKills:
    """In memory only: who leads next is told anew, and what a pod got is in the job's status.

    A kill is of the pod that was there when it was first heard of, and of the life of its container
    that goes on: coordinators tell old ones for ever.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], datetime]) -> None:
        self._cluster, self._clock = cluster, clock
        self._kills: dict[str, tuple[str, dict[tuple[int, int, int], _Kill]]] = {}
        """By job's key: its uid, and kills by the failure's identity."""
        self._tell: Callable[[str], None] = lambda key: None
        cluster.jobs.on_change(self._job_changed)

    def on_news(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the key of each job in which a further rank was killed."""
        self._tell = tell

    def hear(self, job: PyTorchJob, failures: Iterable[Failure]) -> None:
        """Takes what the job's coordinator has just said, all of it. Of a job of several roles that
        train nothing: their indexes name no pod."""
        if job.fixed_nodes:
            return
        uid, known = self._kills.get(job.key, ("", {}))
        before = known if uid == job.uid else {}
        found = {
            one.identity: before.get(one.identity) or self._kill(job, one)
            for one in failures
            if one.out_of_memory
        }
        self._kills[job.key] = (job.uid, found)
        if any(pod for identity, (pod, _) in found.items() if identity not in before):
            self._tell(job.key)

    def of(self, job: PyTorchJob) -> frozenset[str]:
        """Return the uids of the job's pods in which it happened lately."""
        uid, found = self._kills.get(job.key, ("", {}))
        since = self._clock() - STEADY
        lately = (pod for pod, heard in found.values() if pod and heard > since)
        return frozenset(lately) if uid == job.uid else frozenset()

    def _kill(self, job: PyTorchJob, failure: Failure) -> _Kill:
        name = replica_name(job.name, elastic(), failure.worker)
        pod = self._cluster.pods.get(f"{job.namespace}/{name}")
        began = None if pod is None else _began(pod)
        # Both by the node's clock; the start in whole seconds.
        is_its = pod is not None and began is not None and failure.time >= began
        return (pod["metadata"]["uid"] if pod is not None and is_its else "", self._clock())

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._kills.pop(key_of(old), None)


def _began(pod: Object) -> datetime | None:
    """Return when its training container began its present life; None: it doesn't run."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if one.get("name") == CONTAINER:
            return moment.parse_optional(
                ((one.get("state") or {}).get("running") or {}).get("startedAt")
            )
    return None
