"""Watches the cluster and writes down what happens, when it is seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from volcano_elastic.demo.timeline import Change, PodSpan, Timeline
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import NODES, PODS, PYTORCHJOBS, Object
from volcano_elastic.operator.token import HEADER, kept

_JOB_LABEL = "training.kubeflow.org/job-name"
_INDEX_LABEL = "training.kubeflow.org/replica-index"


class Recorder:
    """Fills a Timeline; `now()` is seconds since it was made."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self.timeline = Timeline()
        self.jobs = Informer(client, PYTORCHJOBS)
        self.pods = Informer(client, PODS)
        self.nodes = Informer(client, NODES)
        self.training: dict[str, Object] = {}
        """Job to the newest /status of its coordinator."""
        self._hosts: dict[str, str] = {}
        """By job's uid, the address where its coordinator was found last."""
        self._client = client
        self._start = time.monotonic()
        self._say = say
        self._sizes: dict[str, int] = {}
        self.pods.on_change(self._pod)
        self.jobs.on_change(self._job)

    def now(self) -> float:
        return time.monotonic() - self._start

    def mark(self, text: str) -> None:
        self.timeline.marks.append((self.now(), text))
        self._say(text)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in (self.jobs, self.pods, self.nodes):
                tasks.create_task(informer.run())
            tasks.create_task(self._ask_coordinators())

    def _pod(self, _: Object | None, pod: Object | None) -> None:
        if pod is None:
            gone = _
            if gone is not None and (span := self.timeline.pods.get(gone["metadata"]["uid"])):
                span.ended = span.ended or self.now()
            return
        meta, status = pod["metadata"], pod.get("status", {})
        labels = meta.get("labels", {})
        if _JOB_LABEL not in labels or _INDEX_LABEL not in labels:
            return  # nobody's, or a dedicated coordinator's
        span = self.timeline.pods.get(meta["uid"])
        if span is None:
            limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
            span = self.timeline.pods[meta["uid"]] = PodSpan(
                job=labels[_JOB_LABEL],
                index=int(labels[_INDEX_LABEL]),
                name=meta["name"],
                gpus=int(limits.get("nvidia.com/gpu", 0)),
                created=self.now(),
            )
        span.node = pod["spec"].get("nodeName")
        phase = status.get("phase")
        if phase == "Running" and span.running is None:
            span.running = self.now()
            self._say(f"pod {span.name} runs on {span.node}")
        if phase in ("Succeeded", "Failed") and span.ended is None:
            span.ended = self.now()
        if meta.get("deletionTimestamp") and span.told_to_leave is None:
            span.told_to_leave = self.now()
            self._say(f"pod {span.name} was told to leave")

    def _job(self, _: Object | None, job: Object | None) -> None:
        if job is None:
            return
        name, status = job["metadata"]["name"], job.get("status", {})
        elastic = status.get("elastic", {})
        size = elastic.get("desired")
        if size is not None and size != self._sizes.get(name):
            old = self._sizes.get(name, 0)
            self._sizes[name] = size
            if old:
                reason = elastic.get("lastScaleReason", "")
                message = elastic.get("message", "")
                self.timeline.changes.append(Change(self.now(), name, old, size, reason, message))
                self._say(f"job {name}: {old} → {size} workers ({reason}: {message})")
        for condition in status.get("conditions", ()):
            ended = condition["type"] in ("Succeeded", "Failed") and condition["status"] == "True"
            if ended and name not in self.timeline.finished:
                self.timeline.finished[name] = (self.now(), condition["type"])
                self._say(f"job {name}: {condition['type']}: {condition.get('message', '')}")

    async def _ask_coordinators(self) -> None:
        """Steps and rounds as the trainers report them, ten times a second."""
        tokens: dict[str, str] = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as session:
            while True:
                running: dict[str, list[Object]] = {}
                for pod in self.pods:
                    status = pod.get("status", {})
                    if _JOB_LABEL not in pod["metadata"].get("labels", {}):
                        continue
                    if status.get("podIP") and status.get("phase") == "Running":
                        uid = pod["metadata"]["ownerReferences"][0]["uid"]
                        running.setdefault(uid, []).append(pod)
                for uid, pods in running.items():
                    meta = pods[0]["metadata"]
                    job, namespace = meta["labels"][_JOB_LABEL], meta["namespace"]
                    try:
                        if uid not in tokens:
                            tokens[uid] = await kept(self._client, namespace, job, uid)
                    except (ApiError, aiohttp.ClientError, TimeoutError, ValueError):
                        continue
                    addresses = [pod["status"]["podIP"] for pod in pods]
                    told = await self._ask_job(session, uid, addresses, {HEADER: tokens[uid]})
                    if told is not None:
                        self.training[job] = {**told, "seen": self.now()}
                await asyncio.sleep(0.1)

    async def _ask_job(
        self,
        session: aiohttp.ClientSession,
        uid: str,
        addresses: list[str],
        headers: dict[str, str],
    ) -> Object | None:
        """Return the status of the job's newest coordinator, whichever pod hosts it."""
        known = self._hosts.get(uid)
        if known in addresses:
            told = await _status(session, known, headers)
            if told is not None and not told.get("missing"):
                return told
        answers = await asyncio.gather(*(_status(session, one, headers) for one in addresses))
        found = [
            (told.get("term", 0), address, told)
            for address, told in zip(addresses, answers, strict=True)
            if told is not None
        ]
        if not found:
            return None
        _, self._hosts[uid], told = max(found, key=lambda one: one[:2])
        return told


async def _status(
    session: aiohttp.ClientSession, address: str, headers: dict[str, str]
) -> Object | None:
    """Return what a coordinator at an address tells; None if there is none."""
    try:
        async with session.get(f"http://{address}:23457/status", headers=headers) as answer:
            told = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return told if isinstance(told, dict) and "phase" in told else None
