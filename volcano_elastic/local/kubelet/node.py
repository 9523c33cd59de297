"""The virtual nodes: registered once, kept alive by a lease each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime

import aiohttp

from volcano_elastic.kube.client import AlreadyExists, ApiError, Client, NotFound
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import LEASES, NAMESPACES, NODES, Object
from volcano_elastic.local.kubelet.pod_status import HOST_IP

_log = logging.getLogger(__name__)

_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 40
_RENEW_SECONDS = 10.0
# kube-controller-manager's own patience with a silent node is a little longer.
_TAKEN_FOR_LOST_SECONDS = 40.0
_AT_ONCE = 16


def node_names(count: int) -> list[str]:
    return [f"node-{index}" for index in range(1, count + 1)]


def node_object(name: str, gpus: int, now: datetime, log_port: int | None = None) -> Object:
    """A node far larger in everything but GPUs than what is asked of it.

    Args:
        log_port: where its containers' logs are served, if they are.
    """
    capacity = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
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
                "volcano-elastic.io/virtual": "true",
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
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "virtual node",
                    "lastHeartbeatTime": stamp,
                    "lastTransitionTime": stamp,
                }
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


async def keep_alive(
    client: Client, names: list[str], gpus: int, log_port: int | None = None
) -> None:
    """Renews every node's lease, spread over the interval, until cancelled."""
    clock = asyncio.get_running_loop().time
    renewed = dict.fromkeys(names, clock())
    with contextlib.suppress(ApiError, aiohttp.ClientError, OSError, TimeoutError):
        namespace = {"apiVersion": "v1", "kind": "Namespace"}
        await client.create(NAMESPACES, namespace | {"metadata": {"name": _LEASE_NAMESPACE}})
    while True:
        for name in names:
            try:
                if clock() - renewed[name] > _TAKEN_FOR_LOST_SECONDS:
                    await register(client, [name], gpus, log_port)
                await _renew(client, name)
                renewed[name] = clock()
            except (ApiError, aiohttp.ClientError, OSError, TimeoutError) as error:
                _log.warning("renewing the lease of %s: %s", name, error or type(error).__name__)
            await asyncio.sleep(_RENEW_SECONDS / len(names))


async def _renew(client: Client, name: str) -> None:
    lease = lease_object(name, datetime.now(UTC))
    try:
        await client.patch(LEASES, name, _LEASE_NAMESPACE, {"spec": lease["spec"]})
    except NotFound:
        await client.create(LEASES, lease)
