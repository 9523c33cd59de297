"""The embedded API server beside a real one: `python -m benchmarks.cluster [--json]`.

Both are started for this alone and asked the same by the same clients, on loopback: creates, gets,
status patches, deletes (of `--clients` at once), lists of all, and how long a change takes to many
watchers. The real one (etcd, kube-apiserver and, beside them, controllers) does more: users, audit,
certificates. Its etcd doesn't sync to disk here, and the embedded one keeps everything in memory;
`--data-dir` has it write to SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from embedded_cluster.conformance.control_plane import ControlPlane, EmbeddedControlPlane
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import PODS

_NAMESPACE = "default"
_GRACE = {"gracePeriodSeconds": 0}


def _pod(name: str) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "image:1",
        "command": ["python", "-m", "torch.distributed.run", "train.py"],
        "env": [{"name": f"VARIABLE_{number}", "value": "value"} for number in range(8)],
        "resources": {"limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}},
    }
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    meta = {"name": name, "namespace": _NAMESPACE, "labels": {"app": "bench"}}
    return {"metadata": meta, "spec": spec}


async def _rate(work: Callable[[int], Awaitable[Any]], count: int, clients: int) -> float:
    """Return how many a second."""
    numbers = iter(range(count))

    async def one() -> None:
        for number in numbers:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return count / (time.perf_counter() - began)


async def _requests(client: Client, count: int, clients: int) -> dict[str, float]:
    def create(number: int) -> Awaitable[Any]:
        return client.create(PODS, _pod(f"bench-{number}"))

    def get(number: int) -> Awaitable[Any]:
        return client.get(PODS, f"bench-{number}", _NAMESPACE)

    def patch(number: int) -> Awaitable[Any]:
        body = {"status": {"phase": "Running", "podIP": "127.0.0.9"}}
        return client.patch(PODS, f"bench-{number}", _NAMESPACE, body, subresource="status")

    def listed(_: int) -> Awaitable[Any]:
        return client.list(PODS, _NAMESPACE)

    def delete(number: int) -> Awaitable[Any]:
        return client.request("DELETE", PODS.path(_NAMESPACE, f"bench-{number}"), body=_GRACE)

    return {
        "creates/s": await _rate(create, count, clients),
        "gets/s": await _rate(get, count, clients),
        "status patches/s": await _rate(patch, count, clients),
        f"lists of {count}/s": await _rate(listed, 10, 1),
        "deletes/s": await _rate(delete, count, clients),
    }


class _Arrivals:
    """Notes when each of many watchers has begun, or has seen a change."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.times: list[float] = []
        self._all = asyncio.Event()

    def add(self) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) == self._wanted:
            self._all.set()

    async def all(self) -> list[float]:
        async with asyncio.timeout(120):
            await self._all.wait()
        self._all.clear()
        times, self.times = self.times, []
        return times


async def _latency(client: Client, watchers: int, changes: int) -> dict[str, float]:
    """From sending a change to when the last, and the median, of the watchers has it."""
    begun, seen = _Arrivals(watchers), _Arrivals(watchers)

    async def watch() -> None:
        url = client.access.server + PODS.path(_NAMESPACE)
        params = {"watch": "true", "timeoutSeconds": "600"}
        tls = client.access.tls or False
        async with session.get(
            url, params=params, headers=client.access.headers, ssl=tls
        ) as answer:
            begun.add()
            async for _ in answer.content:
                seen.add()

    unlimited = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=unlimited, timeout=timeout) as session:
        tasks = [asyncio.create_task(watch()) for _ in range(watchers)]
        try:
            await begun.all()
            await client.create(PODS, _pod("watched"))
            await seen.all()
            last, middle = [], []
            for number in range(changes):
                body = {"metadata": {"annotations": {"turn": str(number)}}}
                sent = time.perf_counter()
                await client.patch(PODS, "watched", _NAMESPACE, body)
                times = await seen.all()
                last.append(max(times) - sent)
                middle.append(statistics.median(times) - sent)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await client.request("DELETE", PODS.path(_NAMESPACE, "watched"), body=_GRACE)
    return {
        f"watch, {watchers} watchers: median ms": statistics.median(middle) * 1000,
        f"watch, {watchers} watchers: last ms": statistics.median(last) * 1000,
    }


def _memory(plane: ControlPlane) -> float:
    """MiB resident, of the API server and, of the real one, its store; not of controllers."""
    total = 0
    for name, component in plane.components.items():
        if name != "kube-controller-manager":
            status = Path(f"/proc/{component.pid}/status").read_text()
            total += int(status.partition("VmRSS:")[2].split()[0])
    return total / 1024


async def _measured(plane: ControlPlane, arguments: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    async with plane.client() as client:
        found |= await _requests(client, arguments.objects, arguments.clients)
    for watchers in arguments.watchers:
        async with plane.client() as client:
            found |= await _latency(client, watchers, arguments.changes)
    found["memory after that, MiB"] = _memory(plane)
    return found


def _run(plane: ControlPlane, arguments: argparse.Namespace) -> dict[str, float]:
    began = time.perf_counter()
    with plane:
        start = time.perf_counter() - began
        found = {"start with all CRDs served, s": start, "memory then, MiB": _memory(plane)}
        return found | asyncio.run(_measured(plane, arguments))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--watchers", type=int, nargs="*", default=[1, 100, 1000])
    parser.add_argument("--data-dir", action="store_true", help="the embedded one writes to SQLite")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours = EmbeddedControlPlane(data_dir=Path(folder) if arguments.data_dir else None)
        found = {"embedded": _run(ours, arguments), "real": _run(RealControlPlane(), arguments)}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'':<36}{'embedded':>12}{'real':>12}{'ratio':>10}")
    for what, value in found["embedded"].items():
        other = found["real"][what]
        print(f"{what:<36}{value:>12.1f}{other:>12.1f}{value / other:>10.2f}")


if __name__ == "__main__":
    main()
