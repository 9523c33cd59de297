"""Carries out effects against the API server; remembers what the informers haven't shown yet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import aiohttp

from embedded_cluster.scheduler.effect import (
    Bind,
    Create,
    Effect,
    Evict,
    SetStatus,
    condition,
    set_pod_conditions,
)
from embedded_cluster.scheduler.snapshot import Task
from volcano_elastic.kube import event
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import EVENTS, PODGROUPS, PODS, Object, Resource

_log = logging.getLogger(__name__)
_COMPONENT = "volcano"
_AT_ONCE = 16


class Executor:
    """`bound` and `evicted` hold what was asked for and answered, until a watch shows it."""

    def __init__(
        self,
        client: Client,
        stores: Mapping[Resource, Informer],
        clock: Callable[[], datetime],
    ) -> None:
        self.bound: dict[str, str] = {}
        self.evicted: set[str] = set()
        self._client, self._clock = client, clock
        self._stores = stores
        self._slots = asyncio.Semaphore(_AT_ONCE)
        stores[PODS].on_change(self._seen)

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
            case SetStatus():
                await self._set_status(effect)
            case Create(resource, body):
                with contextlib.suppress(AlreadyExists):
                    self._stores[resource].note_write(await self._client.create(resource, body))

    async def _set_status(self, effect: SetStatus) -> None:
        resource, (namespace, _, name) = effect.resource, effect.key.rpartition("/")
        meta = {"metadata": {"uid": effect.uid}} if effect.uid else {}
        answer = await self._client.patch(
            resource,
            name,
            namespace or None,
            meta | {"status": effect.status},
            # PodGroups have no such subresource; a patch of status leaves others' spec alone.
            subresource=None if resource is PODGROUPS else "status",
            # By which conditions that others wrote stay; custom resources know no such patch.
            patch_type="strategic" if resource is PODS else "merge",
        )
        self._stores[resource].note_write(answer)

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
        await self._tell(PODS, pod.key, "Scheduled", message)

    async def _evict(self, pod: Task, action: str) -> None:
        """Evict as Volcano does: two events, two conditions, then a plain DELETE with the pod's own
        grace."""
        message = f"Pod is evicted, because of {action}"
        _log.info("evicting %s, because of %s", pod.key, action)
        self.evicted.add(pod.uid)
        try:
            await self._tell(PODS, pod.key, "Evict", message, warning=True)
            await self._tell(PODGROUPS, pod.job or "", "Evict", action)
            now = self._clock()
            unready = condition("Ready", "False", "Evict", message, now)
            target = condition("DisruptionTarget", "True", "PreemptionByScheduler", message, now)
            await self._set_status(set_pod_conditions(pod, unready, target))
            answer = await self._client.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
        except BaseException:
            self.evicted.discard(pod.uid)
            raise
        # A pod whose grace is over is answered as it was last; only a leaving one is still there.
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
            self._stores[PODS].note_write(answer)

    async def _tell(
        self, resource: Resource, key: str, reason: str, message: str, *, warning: bool = False
    ) -> None:
        about = self._stores[resource].get(key)
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
            _log.warning("event %s about %s: %s", reason, key, error)


def _words(effect: Effect) -> str:
    match effect:
        case Bind(pod, node):
            return f"binding {pod.key} to {node}"
        case Evict(pod, _):
            return f"evicting {pod.key}"
        case SetStatus(resource, key):
            return f"status of {resource.kind} {key}"
        case Create(resource, body):
            return f"creating {resource.kind} {body['metadata']['name']}"
