"""Carries out effects against the API server; remembers what the informers haven't shown yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime

import aiohttp

from volcano_elastic.api import quantity
from volcano_elastic.kube import event
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import EVENTS, PODGROUPS, PODS, QUEUES, Object
from volcano_elastic.local.scheduler.effect import (
    Bind,
    CreateQueue,
    Effect,
    Evict,
    SetPodGroupStatus,
    SetPodScheduled,
    SetQueueStatus,
)
from volcano_elastic.local.scheduler.snapshot import Task

_log = logging.getLogger(__name__)
_COMPONENT = "volcano"
_AT_ONCE = 16


class Executor:
    """`bound` and `evicted` hold what was asked for and answered, until a watch shows it."""

    def __init__(
        self,
        client: Client,
        *,
        pods: Informer,
        podgroups: Informer,
        queues: Informer,
        clock: Callable[[], datetime],
    ) -> None:
        self.bound: dict[str, str] = {}
        self.evicted: set[str] = set()
        self._client, self._clock = client, clock
        self._pods, self._podgroups, self._queues = pods, podgroups, queues
        self._slots = asyncio.Semaphore(_AT_ONCE)
        pods.on_change(self._seen)

    def _seen(self, old: Object | None, new: Object | None) -> None:
        if old is not None and (new is None or new["metadata"]["uid"] != old["metadata"]["uid"]):
            self.bound.pop(old["metadata"]["uid"], None)
            self.evicted.discard(old["metadata"]["uid"])
        if new is not None:
            if new["spec"].get("nodeName"):
                self.bound.pop(new["metadata"]["uid"], None)
            if new["metadata"].get("deletionTimestamp"):
                self.evicted.discard(new["metadata"]["uid"])

    async def perform(self, effects: Iterable[Effect]) -> bool:
        """Evictions, then everything else, each as many at once as is polite.

        Returns False if something failed and wants another session; what failed is logged.
        """
        listed = list(effects)
        evictions = [self._try(effect) for effect in listed if isinstance(effect, Evict)]
        rest = [self._try(effect) for effect in listed if not isinstance(effect, Evict)]
        done = [*await asyncio.gather(*evictions), *await asyncio.gather(*rest)]
        return all(done)

    async def _try(self, effect: Effect) -> bool:
        async with self._slots:
            try:
                await self._do(effect)
            except NotFound:
                return True
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
                _log.warning("%s failed: %s", _words(effect), error or type(error).__name__)
                return False
            return True

    async def _do(self, effect: Effect) -> None:
        match effect:
            case Bind(pod, node):
                await self._bind(pod, node)
            case Evict(pod, action):
                await self._evict(pod, action)
            case SetPodScheduled(pod, reason, message, node):
                nominated = {"nominatedNodeName": node} if node else {}
                condition = self._condition("PodScheduled", "False", reason, message)
                await self._pod_status(pod, {"conditions": [condition], **nominated})
            case SetPodGroupStatus(key, status):
                namespace, name = key.split("/")
                # There is no status subresource; a patch of status leaves others' spec alone.
                body = {
                    "status": {
                        "phase": status.phase,
                        "running": status.running,
                        "succeeded": status.succeeded,
                        "failed": status.failed,
                        "conditions": [dict(condition) for condition in status.conditions],
                    }
                }
                self._podgroups.put(await self._client.patch(PODGROUPS, name, namespace, body))
            case CreateQueue(name, spec):
                queue = {
                    "apiVersion": QUEUES.api_version,
                    "kind": QUEUES.kind,
                    "metadata": {"name": name},
                    "spec": dict(spec),
                }
                try:
                    self._queues.put(await self._client.create(QUEUES, queue))
                except AlreadyExists:
                    return
            case SetQueueStatus(queue_name, state, allocated):
                amounts = {
                    resource: quantity.text(int(amount))
                    for resource, amount in sorted(allocated.items())
                }
                body = {"status": {"state": state, "allocated": amounts}}
                self._queues.put(
                    await self._client.patch(QUEUES, queue_name, None, body, subresource="status")
                )

    async def _bind(self, pod: Task, node: str) -> None:
        self.bound[pod.uid] = node
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._client.create(PODS, binding, subresource="binding")
        except BaseException:
            self.bound.pop(pod.uid, None)
            raise
        message = f"Successfully assigned {pod.key} to {node}"
        await self._tell(pod, "Scheduled", message, warning=False)

    async def _evict(self, pod: Task, action: str) -> None:
        """As Volcano: an event, two conditions, then a plain DELETE with the pod's own grace."""
        message = f"Pod is evicted, because of {action}"
        _log.info("evicting %s, because of %s", pod.key, action)
        self.evicted.add(pod.uid)
        try:
            await self._tell(pod, "Evict", message, warning=True)
            conditions = [
                self._condition("Ready", "False", "Evict", message),
                self._condition("DisruptionTarget", "True", "PreemptionByScheduler", message),
            ]
            await self._pod_status(pod, {"conditions": conditions})
            answer = await self._client.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
        except BaseException:
            self.evicted.discard(pod.uid)
            raise
        # A pod whose grace is over is answered as it was last; only a leaving one is still there.
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
            self._pods.put(answer)

    async def _pod_status(self, pod: Task, status: Object) -> None:
        answer = await self._client.patch(
            PODS,
            pod.name,
            pod.namespace,
            # The uid keeps a namesake made meanwhile from being told.
            {"metadata": {"uid": pod.uid}, "status": status},
            subresource="status",
            patch_type="strategic",
        )
        self._pods.put(answer)

    def _condition(self, kind: str, status: str, reason: str, message: str) -> Object:
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": event.timestamp(self._clock()),
        }

    async def _tell(self, pod: Task, reason: str, message: str, *, warning: bool) -> None:
        about = self._pods.get(pod.key)
        if about is None:
            return
        told = event.make(
            about,
            reason=reason,
            message=message,
            now=self._clock(),
            component=_COMPONENT,
            warning=warning,
        )
        try:
            await self._client.create(EVENTS, told)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            # An event is only said; what it tells of must not fail for it.
            _log.warning("event %s about %s: %s", reason, pod.key, error)


def _words(effect: Effect) -> str:
    match effect:
        case Bind(pod, node):
            return f"binding {pod.key} to {node}"
        case Evict(pod, _):
            return f"evicting {pod.key}"
        case SetPodScheduled(pod):
            return f"condition of pod {pod.key}"
        case SetPodGroupStatus(key, _):
            return f"status of PodGroup {key}"
        case CreateQueue(name, _):
            return f"creating queue {name}"
        case SetQueueStatus(name, _, _):
            return f"status of queue {name}"
