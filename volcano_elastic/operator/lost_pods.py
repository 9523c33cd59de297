"""Keeps the two witnesses of lost pods, nodes and coordinators, and has jobs reconciled by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from volcano_elastic.api import moment
from volcano_elastic.api import pod as api_pod
from volcano_elastic.api.pytorchjob import CONTAINER, PyTorchJob
from volcano_elastic.api.role import elastic
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator.cluster import Cluster, job_key
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob import coordinator, rendezvous
from volcano_elastic.pytorchjob.label import REPLICA_INDEX, REPLICA_TYPE
from volcano_elastic.pytorchjob.lost_pod import (
    Contact,
    Losses,
    Pod,
    Trouble,
    follow,
    judge,
    listen,
)

_LOOK_SECONDS = 1.0
"""Between two looks at jobs with pods on a node in trouble."""
_ANSWERED_LATELY = timedelta(seconds=60)
"""The operator asks each coordinator more often."""


class LostPods:
    """Tells which pods of a job are lost. In memory only: an operator that has just begun asks
    anew, and no pod is lost by what it doesn't know.

    Args:
        lost_after: how long one witness alone must say so.
    """

    def __init__(
        self,
        cluster: Cluster,
        builder: SnapshotBuilder,
        clock: Callable[[], datetime],
        lost_after: timedelta,
    ) -> None:
        self._cluster, self._builder, self._clock = cluster, builder, clock
        self._lost_after = lost_after
        self._troubles: dict[str, Trouble] = {}
        """By node's name."""
        self._contacts: dict[str, dict[str, Contact]] = {}
        """By job's key and pod's uid, where one is silent or was heard."""
        self._hosts: dict[str, str] = {}
        """By job's key, the address of the pod in which its coordinator was asked last."""
        self._reached: dict[str, datetime] = {}
        """By namespace, when a coordinator or agent there answered last: where none did, it may be
        the operator that reaches nobody."""
        self._tell: Callable[[str], None] = lambda key: None
        self._ask: Callable[[str], None] = lambda key: None
        self._woken = asyncio.Event()
        cluster.nodes.on_change(self._node_changed)
        cluster.jobs.on_change(self._job_changed)

    def on_news(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the key of each job that has lost a pod."""
        self._tell = tell

    def on_doubt(self, ask: Callable[[str], None]) -> None:
        """Have `ask` called with the key of each job whose coordinator should be asked now."""
        self._ask = ask

    async def run(self) -> None:
        """Until cancelled; may be called again then."""
        self._contacts.clear()
        self._hosts.clear()
        while True:
            await self._woken.wait()
            if not self._troubles:
                self._woken.clear()
                continue
            for key in sorted(self._jobs_in_trouble()):
                self._ask(key)
                self._judge(key)
            await asyncio.sleep(_LOOK_SECONDS)

    def hear(self, job: PyTorchJob, report: Report) -> None:
        """Takes what the job's coordinators have just answered. Who could not be asked was not
        silent."""
        if not report.asked:
            return
        # Its agents may have elected another host than worker 0.
        self._hosts[job.key] = report.host
        now = self._clock()
        if report.heard is not None or report.reached:
            self._reached[job.namespace] = now
        pods = self._pods(job)
        contacts = listen(
            pods,
            report.heard,
            self._contacts.get(job.key, {}),
            now,
            reached=report.reached or self._others_answer(job, now),
            vouched=report.vouched,
        )
        self._contacts[job.key] = contacts
        if self._troubles or any(c.silent_since is not None for c in contacts.values()):
            self._judge(job.key)

    def _others_answer(self, job: PyTorchJob, now: datetime) -> bool:
        """Tell whether it is the coordinator rather than the operator that is cut off, of a job
        whose agents answer nothing: others in its namespace do."""
        if rendezvous.can_elect(job) and not coordinator.dedicated(job):
            return False
        answered = self._reached.get(job.namespace)
        return answered is not None and now - answered < _ANSWERED_LATELY

    def of(self, job: PyTorchJob) -> Losses:
        """Return what is lost of a job's pods."""
        contacts = self._contacts.get(job.key, {})
        if not self._troubles and all(c.silent_since is None for c in contacts.values()):
            return Losses({}, None)
        return judge(
            self._pods(job),
            self._troubles,
            contacts,
            self._lost_after,
            self._clock(),
            reached=job.namespace in self._reached,
        )

    def silent(self, job: PyTorchJob) -> int:
        """Return how many workers their coordinator has heard, and hears no more, while their pods
        are ready for Kubernetes, as on a node that it doesn't miss yet."""
        obj = self._cluster.jobs.get(job.key)
        contacts = self._contacts.get(job.key, {})
        silent = {uid for uid, c in contacts.items() if c.heard and c.silent_since and c.witnessed}
        if obj is None or not silent:
            return 0
        pods = (pod for pod in self._cluster.pods_of(obj) if pod["metadata"]["uid"] in silent)
        return sum(
            _index(pod["metadata"].get("labels") or {}) is not None
            and api_pod.ready(pod)
            and not pod["metadata"].get("deletionTimestamp")
            for pod in pods
        )

    def _judge(self, key: str) -> None:
        job = self._builder.parsed_job(key)
        if job is not None and self.of(job).lost:
            self._tell(key)

    def _jobs_in_trouble(self) -> set[str]:
        return {
            job_key(pod)
            for pod in self._cluster.pods
            if (pod.get("spec") or {}).get("nodeName") in self._troubles and job_key(pod)
        }

    def _pods(self, job: PyTorchJob) -> list[Pod]:
        obj = self._cluster.jobs.get(job.key)
        if obj is None:
            return []
        return list(_bound(job, self._cluster.pods_of(obj), self._hosts.get(job.key, "")))

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            # Kubernetes itself deletes the pods of a node that is no longer there.
            self._troubles.pop(key_of(old) if old is not None else "", None)
            return
        name = new["metadata"]["name"]
        watched = old is not None
        found = follow(self._troubles.get(name), new, self._clock(), watched=watched)
        if found is None:
            self._troubles.pop(name, None)
        else:
            self._troubles[name] = found
            self._woken.set()

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._contacts.pop(key_of(old), None)
            self._hosts.pop(key_of(old), None)


def _bound(job: PyTorchJob, pods: tuple[Object, ...], asked: str) -> Iterator[Pod]:
    host = coordinator.host_name(job) if coordinator.used(job) else None
    store_host = rendezvous.store_host(job)
    named = (pod["metadata"]["name"] for pod in pods if asked and _address(pod) == asked)
    elected = next(named, host)
    for pod in pods:
        meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or phase in ("Succeeded", "Failed"):
            continue
        index = _index(meta.get("labels") or {}) if host is not None else None
        name, ended = meta["name"], _container_ended(pod) if store_host is not None else None
        hosts = host is not None and name == elected
        yield Pod(meta["uid"], node, index, hosts, name == store_host, ended)


def _address(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _container_ended(pod: Object) -> datetime | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            ended = (status.get("lastState") or {}).get("terminated") or {}
            return moment.parse_optional(ended.get("finishedAt"))
    return None


def _index(labels: Mapping[str, str]) -> int | None:
    text = labels.get(REPLICA_INDEX, "")
    of_elastic = labels.get(REPLICA_TYPE) == elastic().label
    return int(text) if of_elastic and text.isdigit() else None
