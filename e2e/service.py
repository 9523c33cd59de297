"""An online service beside training: a Deployment where there is a controller for it, and what an
autoscaler and its users see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.kube.client import AlreadyExists, Client, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import AUTOSCALERS, CRDS, PODS, PRIORITYCLASSES, Resource

Object = dict[str, Any]
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
# Served by a CustomResourceDefinition here: what autoscalers ask for needs no more.
_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")
_METRICS_CRD = {
    "apiVersion": CRDS.api_version,
    "kind": CRDS.kind,
    "metadata": {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
    },
    "spec": {
        "group": "metrics.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "pods", "kind": "PodMetrics", "listKind": "PodMetricsList"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
NAME = "web"
_LABELS = {"app": NAME}


@dataclass
class Wait:
    """One pod, in seconds of the event loop's clock."""

    name: str
    created: float
    running: float | None = None
    told: float | None = None
    """To leave."""


class Service:
    """Pods of the default scheduler, one GPU each, each a process that serves HTTP."""

    def __init__(self, client: Client, *, controlled: bool) -> None:
        """
        controlled: somebody carries Deployments out; else this makes and deletes the pods.
        """
        self._client, self._controlled = client, controlled
        self.load = 0
        """Millicores that its users cost it, told to the autoscaler; each pod may have 100."""
        self._made: list[str] = []
        self._count = 0
        self.pods: dict[str, Wait] = {}
        """By uid."""

    async def start(self) -> None:
        priority = {
            "metadata": {"name": "service"},
            "value": 1000,
            # The default scheduler would evict whatever is in its pods' way, worker 0 too.
            "preemptionPolicy": "Never",
        }
        with suppress(AlreadyExists):
            await self._client.create(PRIORITYCLASSES, priority)
        if self._controlled:
            spec = {
                "replicas": 0,
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": _pod_spec()},
            }
            meta = {"name": NAME, "namespace": "default"}
            await self._client.create(DEPLOYMENTS, {"metadata": meta, "spec": spec})

    async def scale(self, replicas: int) -> None:
        """Set the number of pods, as `kubectl scale` does."""
        if self._controlled:
            change = {"spec": {"replicas": replicas}}
            await self._client.patch(DEPLOYMENTS, NAME, "default", change, subresource="scale")
            return
        while len(self._made) < replicas:
            self._count += 1
            name = f"{NAME}-{self._count}"
            meta = {"name": name, "namespace": "default", "labels": _LABELS}
            await self._client.create(PODS, {"metadata": meta, "spec": _pod_spec()})
            self._made.append(name)
        while len(self._made) > replicas:
            with suppress(NotFound):
                await self._client.delete(PODS, self._made.pop(), "default")

    async def autoscale(self, most: int) -> None:
        """Put an autoscaler over it, and what a metrics server would say."""
        await self._client.create(CRDS, _METRICS_CRD)
        target = {"type": "AverageValue", "averageValue": "100m"}
        spec = {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        }
        meta = {"name": NAME, "namespace": "default"}
        await self._client.create(AUTOSCALERS, {"metadata": meta, "spec": spec})

    async def tell_load(self) -> None:
        """Tell each running pod's share of the load, again and again, and of no other pod, as a
        metrics server does: the autoscaler takes the mean of all that are told."""
        told: set[str] = set()
        while True:
            names = [p.name for p in self.pods.values() if p.running and not p.told]
            for name in told.difference(names):
                with suppress(NotFound):
                    await self._client.delete(_METRICS, name, "default")
            told = set(names)
            for name in names:
                share = f"{self.load // len(names)}m"
                body = {
                    "apiVersion": _METRICS.api_version,
                    "kind": _METRICS.kind,
                    "metadata": {"name": name, "namespace": "default", "labels": _LABELS},
                    "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "window": "1s",
                    "containers": [{"name": "nginx", "usage": {"cpu": share, "memory": "1Mi"}}],
                }
                try:
                    await self._client.patch(_METRICS, name, "default", body)
                except NotFound:
                    with suppress(NotFound, AlreadyExists):
                        await self._client.create(_METRICS, body)
            await asyncio.sleep(0.5)

    @property
    def running(self) -> int:
        """Pods that serve and are to go on."""
        return sum(pod.running is not None and pod.told is None for pod in self.pods.values())

    def waits(self, now: float) -> Sequence[float]:
        """Seconds that each pod was waited for, until it ran or was no longer wanted."""
        return [(pod.running or pod.told or now) - pod.created for pod in self.pods.values()]

    def note(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        meta, now = pod["metadata"], asyncio.get_running_loop().time()
        if (meta.get("labels") or {}).get("app") != NAME:
            return
        seen = self.pods.setdefault(meta["uid"], Wait(meta["name"], now))
        if new is None or meta.get("deletionTimestamp"):
            seen.told = seen.told or now
        elif (pod.get("status") or {}).get("phase") == "Running":
            seen.running = seen.running or now


def _pod_spec() -> Object:
    container = {
        "name": "nginx",
        "image": "nginx:1",
        "command": ["python", "-m", "http.server", "0"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return {
        "priorityClassName": "service",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }


@asynccontextmanager
async def service(plane: ControlPlane, client: Client) -> AsyncIterator[Service]:
    found = Service(client, controlled=plane.name != "embedded")
    pods = Informer(client, PODS)
    pods.on_change(found.note)
    watching = asyncio.create_task(pods.run())
    try:
        await found.start()
        yield found
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
