"""The virtual nodes: registered once, kept alive by a lease each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import LEASES, NAMESPACES, NODES, Object
from volcano_elastic.local.kubelet.environment import CAPACITY
from volcano_elastic.local.kubelet.pod_status import HOST_IP

_log = logging.getLogger(__name__)

_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "virtual node"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "virtual node"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "virtual node"),
    ("Ready", "True", "KubeletReady", "virtual node"),
)
_VIRTUAL = "volcano-elastic.io/virtual"
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 40
_RENEW_SECONDS = 10.0
_NO_ANSWER = (ApiError, aiohttp.ClientError, OSError, TimeoutError)
# kube-controller-manager's own patience with a silent node is a little longer.
_TAKEN_FOR_LOST_SECONDS = 40.0
_AT_ONCE = 16


def node_names(count: int) -> list[str]:
    return [f"node-{index}" for index in range(1, count + 1)]


def is_virtual(node: Object) -> bool:
    return (node["metadata"].get("labels") or {}).get(_VIRTUAL) == "true"


def node_object(name: str, gpus: int, now: datetime, log_port: int | None = None) -> Object:
    """As a kubelet registers it.

    Args:
        log_port: where its containers' logs are served, if they are.
    """
    capacity = dict(CAPACITY)
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    stamp = timestamp(now)
    endpoints = {"daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}}} if log_port else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                _VIRTUAL: "true",
            },
        },
        "spec": {},
        "status": {
            **endpoints,
            "capacity": capacity,
            "allocatable": dict(capacity),
            "addresses": [
                {"type": "InternalIP", "address": HOST_IP},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": stamp,
                    "lastTransitionTime": stamp,
                }
                for kind, status, reason, message in _CONDITIONS
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.32.0-volcano-elastic",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "containerRuntimeVersion": "process://1",
                "osImage": "",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "bootID": "",
                "machineID": "",
                "systemUUID": "",
            },
        },
    }


def lease_object(name: str, now: datetime) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": _LEASE_NAMESPACE},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


async def register(
    client: Client, names: list[str], gpus: int, log_port: int | None = None
) -> None:
    """Creates the nodes, or brings ones that exist to the given size.

    Raises:
        ApiError: the API server refused one.
    """
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> None:
        async with limit:
            node = node_object(name, gpus, datetime.now(UTC), log_port)
            try:
                answer = await client.create(NODES, node)
            except AlreadyExists:
                body = {"metadata": {"labels": node["metadata"]["labels"]}}
                await client.patch(NODES, name, None, body)
                answer = {}
            # A restarted node's GPU count may have changed, and must not be merged into the old.
            if answer.get("status", {}).get("allocatable") != node["status"]["allocatable"]:
                status = dict(node["status"])
                if not gpus:
                    gone = {"nvidia.com/gpu": None}
                    status |= {key: status[key] | gone for key in ("capacity", "allocatable")}
                await client.patch(NODES, name, None, {"status": status}, subresource="status")

    await asyncio.gather(*(one(name) for name in names))


class Heartbeats:
    """Renews the lease of each node that isn't down, spread over the interval.

    Args:
        gpus, log_port: as in `register`, which brings back a node that was silent for long.
        down: names of nodes whose lease is left alone, as things are.
    """

    def __init__(
        self,
        client: Client,
        names: list[str],
        gpus: int,
        log_port: int | None,
        down: AbstractSet[str] = frozenset(),
    ) -> None:
        self._client, self._gpus, self._log_port, self._down = client, gpus, log_port, down
        self._clock = asyncio.get_running_loop().time
        self._renewed = dict.fromkeys(names, self._clock())

    def silent(self, name: str) -> float:
        """Seconds since the lease was renewed."""
        return self._clock() - self._renewed[name]

    async def run(self) -> None:
        """Until cancelled."""
        with contextlib.suppress(*_NO_ANSWER):
            namespace = {"apiVersion": "v1", "kind": "Namespace"}
            await self._client.create(
                NAMESPACES, namespace | {"metadata": {"name": _LEASE_NAMESPACE}}
            )
        while True:
            for name in self._renewed:
                if name not in self._down:
                    await self.beat(name)
                await asyncio.sleep(_RENEW_SECONDS / len(self._renewed))

    async def beat(self, name: str, *, returned: bool = False) -> None:
        """Renews the lease of one; one that `returned` says that it is ready too."""
        try:
            if returned or self.silent(name) > _TAKEN_FOR_LOST_SECONDS:
                await register(self._client, [name], self._gpus, self._log_port)
            await _renew(self._client, name)
            self._renewed[name] = self._clock()
        except _NO_ANSWER as error:
            _log.warning("renewing the lease of %s: %s", name, error or type(error).__name__)


async def _renew(client: Client, name: str) -> None:
    lease = lease_object(name, datetime.now(UTC))
    try:
        await client.patch(LEASES, name, _LEASE_NAMESPACE, {"spec": lease["spec"]})
    except NotFound:
        await client.create(LEASES, lease)
