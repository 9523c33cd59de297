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
        if _JOB_LABEL not in labels:
            return
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
                for pod in self.pods:
                    labels = pod["metadata"].get("labels", {})
                    address = pod.get("status", {}).get("podIP")
                    if labels.get(_INDEX_LABEL) != "0" or not address:
                        continue
                    if pod["status"].get("phase") != "Running":
                        continue
                    uid = pod["metadata"]["ownerReferences"][0]["uid"]
                    try:
                        if uid not in tokens:
                            job, namespace = labels[_JOB_LABEL], pod["metadata"]["namespace"]
                            tokens[uid] = await kept(self._client, namespace, job, uid)
                        url, headers = f"http://{address}:23457/status", {HEADER: tokens[uid]}
                        async with session.get(url, headers=headers) as answer:
                            status = await answer.json()
                    except (ApiError, aiohttp.ClientError, TimeoutError, ValueError):
                        continue
                    if "phase" not in status:
                        continue
                    self.training[labels[_JOB_LABEL]] = {**status, "seen": self.now()}
                await asyncio.sleep(0.1)
