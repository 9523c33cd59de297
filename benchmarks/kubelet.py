"""The embedded kubelet's `fake` mode: pods brought to Running, and gone again, on one core.

    python -m benchmarks.kubelet [--nodes 500] [--pods 10000] [--json]

The pods are created on the embedded API server, bound already and at once, before the kubelet
starts; so what is timed is the kubelet (with the API server at its other end), not their creation.
`cpu` is the kubelet's own user and system time; it has a single thread, hence a core at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from embedded_cluster.cluster import LocalCluster
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import PODS, Object

_AT_ONCE = 64
_IDLE_SECONDS = 10.0
_PATIENCE_SECONDS = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Result:
    nodes: int
    pods: int
    running_seconds: float
    """From the kubelet's start to the last pod's Running, nodes registered meanwhile."""
    running_cpu_seconds: float
    gone_seconds: float
    """From the first DELETE to the last pod's end."""
    gone_cpu_seconds: float
    idle_cores: float
    """While nothing changes: leases and watches."""
    memory_mib: float


async def measure(nodes: int, pods: int) -> Result:
    idle = LocalCluster(kubelet="none", operator=False, scheduler=False)
    async with idle as cluster, cluster.client() as client:
        await _at_once(pods, lambda index: client.create(PODS, _pod(index, nodes)))
        fake = LocalCluster(
            nodes=nodes,
            gpus_per_node=8,
            kubelet="fake",
            operator=False,
            scheduler=False,
            existing=cluster.kubeconfig,
        )
        async with _watched(client) as seen:
            began = time.perf_counter()
            async with fake:
                pid = fake.processes["kubelet"]
                await _until(lambda: _running(seen) == pods)
                ready, cpu = time.perf_counter(), _cpu(pid)
                await asyncio.sleep(_IDLE_SECONDS)
                before = _cpu(pid)
                memory = _memory(pid)
                deleted = time.perf_counter()
                await _at_once(pods, lambda i: client.delete(PODS, f"pod-{i}", "default"))
                await _until(lambda: len(seen) == 0)
                return Result(
                    nodes,
                    pods,
                    ready - began,
                    cpu,
                    time.perf_counter() - deleted,
                    _cpu(pid) - before,
                    (before - cpu) / _IDLE_SECONDS,
                    memory,
                )


def _pod(index: int, nodes: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{index}",
            "namespace": "default",
            "labels": {"app": f"job-{index // 10}", "index": str(index % 10)},
        },
        "spec": {
            "nodeName": f"node-{index % nodes + 1}",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "any", "command": ["sleep", "inf"]}],
        },
    }


async def _at_once(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> None:
        async with limit:
            await work(index)

    await asyncio.gather(*(one(index) for index in range(count)))


@asynccontextmanager
async def _watched(client: Client) -> AsyncIterator[Informer]:
    pods = Informer(client, PODS)
    task = asyncio.create_task(pods.run())
    try:
        await pods.synced.wait()
        yield pods
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _running(pods: Informer) -> int:
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in pods)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options.nodes, options.pods))
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{result.pods} pods on {result.nodes} nodes")
    print(
        f"all Running after {result.running_seconds:.1f} s, {result.running_cpu_seconds:.1f} s cpu"
    )
    print(f"all gone after {result.gone_seconds:.1f} s, {result.gone_cpu_seconds:.1f} s cpu")
    print(f"idle: {result.idle_cores:.3f} cores; {result.memory_mib:.0f} MiB")


if __name__ == "__main__":
    main()
