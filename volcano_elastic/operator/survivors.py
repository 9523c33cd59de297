"""Keeps which jobs need their worker 0: their other workers could not go on if it were lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from volcano_elastic.api.pytorchjob import CONTAINER, PyTorchJob
from volcano_elastic.api.role import elastic
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator.cluster import Cluster, job_key
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob import coordinator, first_pod, rendezvous
from volcano_elastic.pytorchjob.first_pod import Answers
from volcano_elastic.pytorchjob.label import REPLICA_INDEX, REPLICA_TYPE


@dataclass(slots=True)
class _Job:
    uid: str
    answers: Answers = field(default_factory=Answers)
    members: dict[str, int] = field(default_factory=dict)
    """By uid, restarts of the pods whose containers were in the round told of last, but pod 0."""


class Survivors:
    """In memory only: an operator that has just begun asks first. The planner's snapshot is told,
    too, so that both decide by the same."""

    def __init__(
        self, cluster: Cluster, builder: SnapshotBuilder, clock: Callable[[], datetime]
    ) -> None:
        self._cluster, self._builder, self._clock = cluster, builder, clock
        self._began = clock()
        self._jobs: dict[str, _Job] = {}
        self._tell: Callable[[str], None] = lambda key: None
        cluster.pods.on_change(self._pod_changed)
        cluster.jobs.on_change(self._job_changed)

    def on_news(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the key of each job that needs its worker 0 from now on, or no
        longer does."""
        self._tell = tell

    def begin(self) -> None:
        """Forget what was heard: another operator may have led meanwhile."""
        self._began = self._clock()
        for key in list(self._jobs):
            self._forget(key)

    def hear(self, job: PyTorchJob, report: Report) -> None:
        """Takes what the job's coordinators have just answered."""
        obj = self._cluster.jobs.get(job.key)
        if not report.asked or obj is None or not rendezvous.hosted(job):
            return
        known, now = self._known(job), self._clock()
        pods = self._cluster.pods_of(obj)
        # An old worker 0 behind a partition may answer, too.
        there = any(_address(pod) == report.host for pod in pods) if report.host else False
        if report.round and not report.missing and there:
            if report.members:
                known.members = {
                    pod["metadata"]["uid"]: _restarts(pod)
                    for pod in pods
                    if _index(pod) in report.members and _index(pod) != 0 and not _over(pod)
                }
            known.answers = first_pod.told(known.answers, self._count(job, known, report), now)
        else:
            known.answers = first_pod.silent(known.answers, now)
        self._judge(job.key, known)

    def needed(self, job: PyTorchJob) -> bool:
        """Return whether the job's other workers can't go on without worker 0. Until it was asked
        nobody is taken away for it; who is never asked can't tell."""
        asked = self._builder.parsed_job(job.key)
        return asked is None or self._builder.needs_first(job.key)

    def _count(self, job: PyTorchJob, known: _Job, report: Report) -> int | None:
        # Whoever begins anew finds a dedicated coordinator where it was.
        if coordinator.dedicated(job) or not (report.members or known.members):
            return None
        return len(known.members)

    def _known(self, job: PyTorchJob) -> _Job:
        known = self._jobs.get(job.key)
        if known is None or known.uid != job.uid:
            self._forget(job.key)
            known = self._jobs[job.key] = _Job(job.uid)
        return known

    def _judge(self, key: str, known: _Job) -> None:
        needed = first_pod.needs_first(known.answers, self._began)
        if needed != self._builder.needs_first(key):
            self._builder.need_first(key, needed=needed)
            self._tell(key)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None:
            return
        key = job_key(old)
        known = self._jobs.get(key)
        if known is None:
            return
        uid = old["metadata"]["uid"]
        gone = new is None or new["metadata"]["uid"] != uid or _over(new)
        if _index(old) == 0 and gone and not _over(old) and (old.get("spec") or {}).get("nodeName"):
            known.answers = replace(known.answers, left=self._clock())
        began = known.members.get(uid)
        if began is None or (not gone and new is not None and _restarts(new) == began):
            return
        del known.members[uid]
        if known.answers.survivors is not None:
            known.answers = replace(known.answers, survivors=len(known.members))
            self._judge(key, known)

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._forget(key_of(old))

    def _forget(self, key: str) -> None:
        self._jobs.pop(key, None)
        self._builder.need_first(key, needed=False)


def _over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _restarts(pod: Object) -> int:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            return int(status.get("restartCount", 0))
    return 0


def _address(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _index(pod: Object) -> int | None:
    labels = pod["metadata"].get("labels") or {}
    text = str(labels.get(REPLICA_INDEX, ""))
    return int(text) if labels.get(REPLICA_TYPE) == elastic().label and text.isdigit() else None
