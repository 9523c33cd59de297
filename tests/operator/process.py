"""The operator as a process of its own, beside a fake scheduler and kubelet, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from embedded_cluster.readiness import HOST, free_port, is_ready
from tests import program
from tests.patience import PATIENCE, eventually
from volcano_elastic.api import moment
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.resource import CRDS, NODES, PODS, PYTORCHJOBS, QUEUES

ROOT = Path(__file__).parents[2]
Object = dict[str, Any]


class OperatorProcess:
    """Its log goes to `log` where one is given; `root` is the tree that it is run from."""

    def __init__(
        self, kubeconfig: Path, *arguments: str, log: Path | None = None, root: Path = ROOT
    ) -> None:
        self._kubeconfig, self._arguments, self.log = kubeconfig, arguments, log
        self._root = root
        self.process: asyncio.subprocess.Process | program.Program | None = None
        self.port = free_port()
        """Port of its health and metrics."""

    async def start(self, *, wait: bool = True) -> None:
        command = ["-m", "volcano_elastic.operator"]
        command += ["--kubeconfig", str(self._kubeconfig)]
        command += ["--metrics-address", f"{HOST}:{self.port}", *self._arguments]
        log = self.log.open("w") if self.log else os.fdopen(os.dup(2), "w")
        with log:
            if self._root == ROOT:
                self.process = program.Program(program.fork(command, os.environ, log))
            else:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, *command, cwd=self._root, stdout=log, stderr=log
                )
        if wait:
            await self.ready()

    async def ready(self) -> None:
        async def answers() -> bool:
            assert self.process is not None and self.process.returncode is None, "it ended"
            return await asyncio.to_thread(is_ready, self.port)

        await eventually(answers, "the operator is ready")

    async def healthy(self) -> None:
        """Returns once it answers at all, whether it is ready or not."""

        async def answers() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return (await self.get("/healthz"))[0] == 200
            return False

        await eventually(answers, "the operator answers")

    async def get(self, path: str) -> tuple[int, str]:
        """(status code, text) of a path like /metrics."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{HOST}:{self.port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def samples(self) -> dict[tuple[str, ...], float]:
        """Metrics: (name, label values in the order of their names…) to value."""
        _, text = await self.get("/metrics")
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            return await asyncio.wait_for(self.process.wait(), 60)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise


async def install(client: Client, nodes: int = 2, gpus: int = 2) -> None:
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        await client.create(CRDS, yaml.safe_load(file.read_text()))
    for i in range(nodes):
        name = f"node-{i}"
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        await client.create(NODES, node)
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await client.patch(NODES, name, None, {"status": status}, subresource="status")
    queue = {
        "apiVersion": QUEUES.api_version,
        "kind": "Queue",
        "metadata": {"name": "default"},
        "spec": {"weight": 1},
    }
    await client.create(QUEUES, queue)
    await client.patch(QUEUES, "default", None, {"status": {"state": "Open"}}, subresource="status")


def job(name: str, low: int, high: int, **elastic: Any) -> Object:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container]}}
    return {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "elasticPolicy": {"min": low, "max": high, "cooldownSeconds": 0} | elastic,
            "pytorchReplicaSpecs": {"Worker": {"template": template}},
        },
    }


class FakeNodes:
    """Binds each pod where a GPU is free, runs it, and lets go of it when it is deleted."""

    def __init__(self, client: Client, nodes: int = 2, gpus: int = 2) -> None:
        self._client = client
        self._free = {f"node-{i}": gpus for i in range(nodes)}
        self.seen: dict[str, str] = {}
        """uid to name, of every pod that ever was"""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
            if task.done():
                task.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                await self.once()
            await asyncio.sleep(0.1)

    async def once(self) -> None:
        pods = (await self._client.list(PODS))["items"]
        free = dict(self._free)
        for pod in pods:
            self.seen[pod["metadata"]["uid"]] = pod["metadata"]["name"]
            node = pod["spec"].get("nodeName")
            if node and pod["status"].get("phase") in ("Pending", "Running"):
                free[node] -= 1
        for pod in pods:
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                await self._client.delete(
                    PODS, meta["name"], "default", uid=meta["uid"], grace_period_seconds=0
                )
            elif not pod["spec"].get("nodeName"):
                node = next((name for name, gpus in free.items() if gpus > 0), None)
                if node is not None:
                    free[node] -= 1
                    await self._start(meta["name"], node)

    async def _start(self, name: str, node: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": "default"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._client.create(PODS, binding, subresource="binding")
        await self.patch(name, {"phase": "Running"})

    async def end(self, name: str, phase: str, code: int) -> None:
        ended = {"exitCode": code, "finishedAt": moment.timestamp(datetime.now(UTC))}
        state = {"name": "pytorch", "restartCount": 0, "state": {"terminated": ended}}
        await self.patch(name, {"phase": phase, "containerStatuses": [state]})

    async def patch(self, name: str, status: Object) -> None:
        await self._client.patch(PODS, name, "default", {"status": status}, subresource="status")
