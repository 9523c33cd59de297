"""Follows PyTorchJobs on an embedded cluster to their end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from embedded_cluster.cluster import LocalCluster
from embedded_cluster.component import ClusterError
from embedded_cluster.job_wait import SECONDS, waits_for
from embedded_cluster.manifest import Manifest, apply
from embedded_cluster.pod_logs import PodLogs
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import EVENTS, PODS, PYTORCHJOBS, Object, key_of

_LOOK_SECONDS = 0.1
# A ConfigMap may still be on its way; nobody brings one after this long.
_CONFIG_SECONDS = 15.0
# On a cluster the back-off goes on for ever; here somebody waits at the terminal.
_TRIES = 3
_SHORT_LIFE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job's end: its key, "Succeeded" or "Failed", and the condition's message."""

    job: str
    result: str
    message: str


def outcome(job: Object) -> Outcome | None:
    """None while the job goes on."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["type"] in ("Succeeded", "Failed") and condition["status"] == "True":
            return Outcome(key_of(job), condition["type"], condition.get("message", ""))
    return None


def cannot_start(pod: Object) -> str | None:
    """Why a container of this pod will never run, however often it is tried; else None."""
    status = pod.get("status", {})
    for container in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
        for state in (container.get("state", {}), container.get("lastState", {})):
            ended = state.get("terminated", {})
            if ended.get("reason") == "StartError":
                return f"container {container['name']}: {ended.get('message', '')}"
    return None


def keeps_failing(pod: Object) -> str | None:
    """Set when a container ended in an error, soon after its start, each time it was tried."""
    for container in pod.get("status", {}).get("containerStatuses", []):
        ended = container.get("lastState", {}).get("terminated", {})
        if container.get("restartCount", 0) < _TRIES - 1 or not ended.get("exitCode"):
            continue
        lived = _moment(ended["finishedAt"]) - _moment(ended["startedAt"])
        if lived < _SHORT_LIFE:
            return (
                f"container {container['name']}: exit code {ended['exitCode']} after "
                f"{lived.total_seconds():.0f} s, {container['restartCount']} restarts; "
                "its last lines say why"
            )
    return None


def _controlled_by(pod: Object, job: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def misconfigured(pod: Object) -> str | None:
    """Return what a container of this pod lacks to be made; else None."""
    for container in pod.get("status", {}).get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") == "CreateContainerConfigError":
            return f"container {container['name']}: {waiting.get('message', '')}"
    return None


class JobRun:
    """Applies `manifests` and follows their jobs; `say` is told every line of their logs.

    Args:
        warn: told every Warning event, and what a job waits for.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        client: Client,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._cluster, self._client = cluster, client
        self._say, self._warn = say, warn
        self._jobs = Informer(client, PYTORCHJOBS)
        self._pods = Informer(client, PODS)
        self._events = Informer(client, EVENTS)
        self._misconfigured_since: dict[str, float] = {}
        self._waits: dict[str, tuple[str, float]] = {}
        """By job, what it waits for, and since when; infinite once that was told."""

    async def finish(self, manifests: list[Manifest]) -> list[Outcome]:
        """The end of every job.

        Raises:
            ManifestError: an object was refused.
            ClusterError: the cluster failed, or a pod can never run.
        """
        self._events.on_change(self._on_event)
        watching = [
            asyncio.create_task(informer.run())
            for informer in (self._jobs, self._pods, self._events)
        ]
        logs = PodLogs(self._cluster.pods_folder)
        try:
            await apply(self._client, manifests)
            keys = [key_of(m.obj) for m in manifests if m.obj["kind"] == PYTORCHJOBS.kind]
            while True:
                for line in logs.new_lines():
                    self._say(line)
                done = [end for key in keys if (end := self._outcome(key))]
                if len(done) == len(keys):
                    return done
                self._raise_if_it_cannot_end()
                self._tell_waits(keys)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for line in logs.new_lines(last=True):
                self._say(line)
            logs.close()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def _outcome(self, key: str) -> Outcome | None:
        job = self._jobs.get(key)
        return outcome(job) if job else None

    def _raise_if_it_cannot_end(self) -> None:
        if self._cluster.failed.done():
            raise ClusterError(self._cluster.failed.result())
        now = asyncio.get_running_loop().time()
        for pod in self._pods:
            key = key_of(pod)
            reason = cannot_start(pod) or keeps_failing(pod)
            if reason is None and (lacking := misconfigured(pod)) is not None:
                since = self._misconfigured_since.setdefault(pod["metadata"]["uid"], now)
                reason = lacking if now - since > _CONFIG_SECONDS else None
            if reason is not None:
                raise ClusterError(f"pod {key} can't run: {reason}")

    def _tell_waits(self, keys: list[str]) -> None:
        now = asyncio.get_running_loop().time()
        for key in keys:
            job = self._jobs.get(key)
            if job is None or outcome(job):
                continue
            mine = [pod for pod in self._pods if _controlled_by(pod, job)]
            wait = waits_for(job, mine)
            if key not in self._waits or self._waits[key][0] != wait:
                self._waits[key] = wait, now
            elif wait and now - self._waits[key][1] > SECONDS:
                self._waits[key] = wait, math.inf
                self._warn(f"{key} waits: {wait}")

    def _on_event(self, old: Object | None, new: Object | None) -> None:
        if new is not None and old is None and new.get("type") == "Warning":
            about = new["involvedObject"]
            kind, name = about["kind"].lower(), about["name"]
            self._warn(f"{kind}/{name}: {new['reason']}: {new['message']}")
