"""The virtual nodes: registered once, kept alive by a lease each, silent when asked to be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Set
from datetime import UTC, datetime

import aiohttp

from embedded_cluster.kubelet import fault
from embedded_cluster.kubelet.pod_status import HOST_IP
from volcano_elastic.api.pod import condition
from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import LEASES, NAMESPACES, NODES, Object

_log = logging.getLogger(__name__)

# Far larger in everything but GPUs than what is asked of it.
_CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
_CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID"),
    "Ready": ("True", "KubeletReady"),
}
_NODE_INFO = {
    "kubeletVersion": "v1.32.0-volcano-elastic",
    "operatingSystem": "linux",
    "architecture": "amd64",
    "containerRuntimeVersion": "process://1",
}
_UNTOLD = ("osImage", "kernelVersion", "kubeProxyVersion", "bootID", "machineID", "systemUUID")
_VIRTUAL = "volcano-elastic.io/virtual"
_LEASE_NAMESPACE = "kube-node-lease"
_RENEW_SECONDS = 10.0
_NOT_DONE = (ApiError, aiohttp.ClientError, OSError)
_AT_ONCE = 16


def node_names(count: int) -> list[str]:
    return [f"node-{index}" for index in range(1, count + 1)]


def is_virtual(node: Object) -> bool:
    return (node["metadata"].get("labels") or {}).get(_VIRTUAL) == "true"


def node_object(name: str, gpus: int, now: datetime, log_port: int | None = None) -> Object:
    """Return the Node that a kubelet registers.

    Args:
        log_port: where its containers' logs are served, if they are.
    """
    capacity = _CAPACITY | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    stamp = timestamp(now)
    endpoints = {"daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}}} if log_port else {}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", _VIRTUAL: "true"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
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
                    "message": "virtual node",
                    "lastHeartbeatTime": stamp,
                    "lastTransitionTime": stamp,
                }
                for kind, (status, reason) in _CONDITIONS.items()
            ],
            "nodeInfo": _NODE_INFO | dict.fromkeys(_UNTOLD, ""),
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
            with contextlib.suppress(AlreadyExists):
                await client.create(NODES, node)
                return
            body = {"metadata": {"labels": node["metadata"]["labels"]}}
            await client.patch(NODES, name, None, body)
            status = node["status"]
            if not gpus:
                # It may have had some, and is merged into what it was.
                gone = {"nvidia.com/gpu": None}
                status |= {key: status[key] | gone for key in ("capacity", "allocatable")}
            await client.patch(NODES, name, None, {"status": status}, subresource="status")

    await asyncio.gather(*(one(name) for name in names))


class VirtualNodes:
    """Renews the lease of each node that no fault keeps silent, spread over the interval.

    Args:
        gpus, log_port: as in `register`, which brings back a node that was taken for lost.
    """

    def __init__(
        self, client: Client, names: list[str], gpus: int, log_port: int | None = None
    ) -> None:
        self._client, self._gpus, self._log_port = client, gpus, log_port
        self._clock = asyncio.get_running_loop().time
        self._names = frozenset(names)
        self._unready: set[str] = set()
        """Nodes of which somebody says that they aren't ready."""
        self._asked: dict[str, fault.NodeFault] = {}
        """By node, the fault that its annotation asks for, begun or not."""
        self._beginning: dict[str, asyncio.TimerHandle] = {}
        self._silent: dict[str, float] = {}
        """Since when the nodes are silent that have a fault."""
        self.handlers: list[Callable[[str, fault.NodeFaultKind | None], None]] = []
        """Told of a node's name, and the fault that it has from now on."""

    @property
    def silent(self) -> Set[str]:
        """The nodes whose kubelet is not heard of."""
        return self._silent.keys()

    def up(self, name: str | None) -> bool:
        """Return whether the node is one of them, and its kubelet works."""
        return name in self._names and name not in self._silent

    def seconds_silent(self, name: str) -> float:
        return self._clock() - self._silent.get(name, self._clock())

    def on_change(self, old: Object | None, new: Object | None) -> None:
        """To be told of all nodes there are."""
        name = (new or old or {})["metadata"]["name"]
        if name not in self._names:
            return
        ready = condition(new or {}, "Ready")
        (self._unready.add if ready and ready["status"] != "True" else self._unready.discard)(name)
        wanted = fault.parse_node(fault.annotated(new)) if new is not None else None
        if wanted == self._asked.get(name):
            return
        if name in self._beginning:
            self._beginning.pop(name).cancel()
        if wanted is None:
            del self._asked[name]
            if name in self._silent:
                self._change(name, None)
            return
        self._asked[name] = wanted
        if not wanted.after:
            self._change(name, wanted.kind)
            return
        _log.info("node %s will be %s in %g s by request", name, wanted.kind, wanted.after)
        self._beginning[name] = asyncio.get_running_loop().call_later(
            wanted.after, self._change, name, wanted.kind
        )

    def _change(self, name: str, kind: fault.NodeFaultKind | None) -> None:
        self._beginning.pop(name, None)
        if kind is None:
            del self._silent[name]
        else:
            self._silent.setdefault(name, self._clock())
        _log.info("node %s is %s by request", name, kind or "up again")
        for handler in self.handlers:
            handler(name, kind)

    async def run(self) -> None:
        """Until cancelled."""
        with contextlib.suppress(*_NOT_DONE):
            namespace = {"apiVersion": "v1", "kind": "Namespace"}
            await self._client.create(
                NAMESPACES, namespace | {"metadata": {"name": _LEASE_NAMESPACE}}
            )
        while True:
            for name in sorted(self._names):
                if name not in self._silent:
                    await self.beat(name)
                await asyncio.sleep(_RENEW_SECONDS / len(self._names))

    async def beat(self, name: str, *, returned: bool = False) -> None:
        """Renews the lease of one; one that `returned` says that it is ready too."""
        try:
            if returned or name in self._unready:
                await register(self._client, [name], self._gpus, self._log_port)
            await self._renew(name)
        except _NOT_DONE as error:
            _log.warning("renewing the lease of %s: %s", name, error or type(error).__name__)

    async def _renew(self, name: str) -> None:
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
        try:
            await self._client.patch(LEASES, name, _LEASE_NAMESPACE, {"spec": spec})
        except NotFound:
            about = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
            meta = {"name": name, "namespace": _LEASE_NAMESPACE}
            await self._client.create(LEASES, about | {"metadata": meta})
