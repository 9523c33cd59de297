"""Jobs × replicas created, running and deleted, by the operator as a process of its own.

    python -m benchmarks.operator [--scenario JOBSxREPLICAS ...] [--control-plane embedded|real]

The control planes are those of the end-to-end suite (e2e/README.md). Nodes are objects with room
for all pods and nothing behind them; this program says which pods run, and nothing schedules. Each
operator first carries out a job that is not counted. Where TRAINING_OPERATOR_BIN names Kubeflow's
training-operator (benchmarks/training_operator.py), that is measured too, in turns, by the same
steps, after a round of ours that isn't counted: who comes first to a new kube-apiserver needs twice
the time of who comes next.

`calls a pod` counts every request of the operator while the pods were created, but watches and the
lease; `idle calls` those of 10 s in which nothing changed, once the operator has sent what it owed:
events are sent at leisure, and are over when no call has been made for 2 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks import training_operator
from benchmarks.endpoint import free_endpoint
from embedded_cluster.component import Component
from embedded_cluster.conformance.control_plane import (
    ControlPlane,
    ControlPlaneError,
    EmbeddedControlPlane,
    ForeignControlPlane,
)
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import NAMESPACES, NODES, PODS, PYTORCHJOBS, SERVICES, Object

NAMESPACE = "operator-benchmark"
SCENARIOS = ((1, 1000), (100, 10), (1000, 1))
AT_ONCE = 32
IDLE_SECONDS = 10.0
STILL_SECONDS = 2.0
OWED_SECONDS = 120.0
"""Seconds after which calls that have not ended are taken to go on for ever, and are counted."""
PATIENCE_SECONDS = 900.0
OURS = "volcano-elastic"
PLANES = (EmbeddedControlPlane, RealControlPlane, ForeignControlPlane)
GPUS_A_NODE = 8
WIDTH = 132
"""Columns of the table in a pipe or a file."""


@dataclass(frozen=True, slots=True)
class Row:
    operator: str
    jobs: int
    replicas: int
    create_seconds: float
    """From the first job's creation to the last pod and service."""
    pods_per_second: float
    calls_per_pod: float
    cpu_ms_per_pod: float
    """User and system time of the operator's process."""
    run_seconds: float
    """From the last pod's Running to the last job's."""
    delete_seconds: float
    """From the first job's deletion to the last pod's and service's."""
    idle_calls: int
    memory_mib: float
    """Resident, while all jobs run."""


class Operator:
    """One operator's process, and what it says of itself."""

    def __init__(self, name: str, command: list[str], port: int, folder: Path) -> None:
        self.name = name
        self._port = port
        """Port of its metrics."""
        self._process = Component(name, command, folder / f"{name}.log")

    @classmethod
    def ours(cls, plane: ControlPlane) -> Operator:
        port = free_endpoint()
        command = [sys.executable, "-m", "volcano_elastic.operator"]
        command += ["--kubeconfig", str(plane.kubeconfig), "--metrics-address", f"127.0.0.1:{port}"]
        return cls(OURS, command, port, plane.folder)

    @classmethod
    def kubeflows(cls, plane: ControlPlane, program: str) -> Operator:
        port, health, webhook = free_endpoint(), free_endpoint(), free_endpoint()
        command = training_operator.command(program, plane.kubeconfig, port, health, webhook)
        return cls(training_operator.NAME, command, port, plane.folder)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._process.start()
        try:
            await until(self._answers, f"{self.name} answers")
            yield
        finally:
            self._process.send(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while self._process.running():
                if time.monotonic() > deadline:
                    self._process.send(signal.SIGKILL)
                await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        if (code := self._process.exit_code()) is not None:
            raise SystemExit(
                f"error: {self.name} ended with {code}; it said:\n{self._process.tail()}"
            )
        try:
            await self.calls()
        except (aiohttp.ClientError, OSError):
            return False
        return True

    async def calls(self) -> float:
        """Requests to the API server so far, but watches and the lease's."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self._port}/metrics") as answer,
        ):
            text = await answer.text()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in ("volcano_elastic_api_requests_total", "rest_client_requests_total")
            and sample.labels.get("verb") != "watch"
            and sample.labels.get("resource") != "leases"
        )

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def until(holds: Callable[[], Awaitable[bool]], what: str, every: float = 0.02) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: not within {PATIENCE_SECONDS:.0f} s: {what}")
        await asyncio.sleep(every)


async def stillness(operator: Operator) -> None:
    """Waits until the operator has made no call for a while."""
    deadline = time.monotonic() + OWED_SECONDS
    before = -1.0
    while (now := await operator.calls()) != before and time.monotonic() < deadline:
        before = now
        await asyncio.sleep(STILL_SECONDS)


async def at_once(works: Iterable[Awaitable[object]]) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[object]) -> None:
        async with free:
            await work

    await asyncio.gather(*(one(work) for work in works))


def job(name: str, replicas: int) -> Object:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "command": ["python", "-m", "torch.distributed.run", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "4", "memory": "16Gi"}},
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    worker = {"replicas": replicas, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    return {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


async def put_node(client: Client, index: int) -> None:
    name = f"operator-benchmark-{index}"
    # By this label the suite's control planes take away what was brought to a cluster of yours.
    meta = {"name": name, "labels": {"volcano-elastic.io/virtual": "true"}}
    with suppress(AlreadyExists):
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
    room = {"nvidia.com/gpu": str(GPUS_A_NODE), "cpu": "96", "memory": "1Ti", "pods": "110"}
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": timestamp(datetime.now(UTC))}
    status = {"capacity": room, "allocatable": room, "conditions": [beat]}
    await client.patch(NODES, name, None, {"status": status}, subresource="status")


def state(obj: Object) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or [{}]
    return str(conditions[-1].get("type", ""))


async def measure(client: Client, operator: Operator, jobs: int, replicas: int) -> Row:
    """Leaves the namespace as empty as it found it."""
    watched = {
        kind: Informer(client, kind, namespace=NAMESPACE) for kind in (PYTORCHJOBS, PODS, SERVICES)
    }
    watching = [asyncio.create_task(informer.run()) for informer in watched.values()]
    wanted = jobs * replicas

    def count(pods: int, services: int) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return len(watched[PODS]) == pods and len(watched[SERVICES]) == services

        return holds

    async def run_all() -> bool:
        return all(state(one) == "Running" for one in watched[PYTORCHJOBS])

    async def run(pod: Object) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "conditions": conditions, "podIP": "127.0.0.1"}
        name = pod["metadata"]["name"]
        await client.patch(PODS, name, NAMESPACE, {"status": status}, subresource="status")

    async def delete(name: str) -> None:
        await client.delete(PYTORCHJOBS, name, NAMESPACE, propagation_policy="Background")

    try:
        for informer in watched.values():
            await informer.synced.wait()
        # One more for the first job.
        nodes = math.ceil((wanted + 1) / GPUS_A_NODE)
        await at_once(put_node(client, i) for i in range(nodes))
        await client.create(PYTORCHJOBS, job("first", 1))
        await until(count(1, 1), f"{operator.name} carries out a first job")
        await delete("first")
        await until(count(0, 0), "the first job's pod and service are gone")
        calls, cpu, began = await operator.calls(), operator.cpu_seconds(), time.monotonic()
        await at_once(client.create(PYTORCHJOBS, job(f"job-{i}", replicas)) for i in range(jobs))
        await until(count(wanted, wanted), f"{wanted} pods and services")
        created = time.monotonic() - began
        # Its last statuses and events belong to the creation too.
        await asyncio.sleep(1)
        calls, cpu = await operator.calls() - calls, operator.cpu_seconds() - cpu
        await at_once(run(pod) for pod in watched[PODS])
        began = time.monotonic()
        await until(run_all, "all jobs run")
        ran = time.monotonic() - began
        await stillness(operator)
        idle = await operator.calls()
        await asyncio.sleep(IDLE_SECONDS)
        idle = await operator.calls() - idle
        memory = operator.memory_mib()
        began = time.monotonic()
        await at_once(delete(f"job-{i}") for i in range(jobs))
        await until(count(0, 0), "all pods and services are gone")
        deleted = time.monotonic() - began
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return Row(
        operator.name,
        jobs,
        replicas,
        round(created, 2),
        round(wanted / created),
        round(calls / wanted, 2),
        round(cpu * 1000 / wanted, 2),
        round(ran, 2),
        round(deleted, 2),
        round(idle),
        round(memory),
    )


async def benchmark(
    plane: ControlPlane, scenarios: Sequence[tuple[int, int]], repeat: int
) -> list[Row]:
    rows = []
    peer = training_operator.program()
    async with plane.client() as client, AsyncExitStack() as stack:
        with suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        if peer:
            await stack.enter_async_context(training_operator.surroundings(client))
            first = Operator.ours(plane)
            async with first.running():
                await measure(client, first, *scenarios[0])
        for jobs, replicas in scenarios:
            for turn in range(repeat):
                operators = [Operator.ours(plane)]
                operators += [Operator.kubeflows(plane, peer)] if peer else []
                # Neither always on the server that the other has filled.
                for operator in operators[:: -1 if turn % 2 else 1]:
                    async with operator.running():
                        rows.append(await measure(client, operator, jobs, replicas))
        await client.delete(NAMESPACES, NAMESPACE)
    return rows


def ratios(rows: Iterable[Row]) -> list[str]:
    """Ours beside Kubeflow's, of the medians."""
    by_scenario: dict[tuple[int, int], dict[str, list[Row]]] = {}
    for row in rows:
        both = by_scenario.setdefault((row.jobs, row.replicas), {})
        both.setdefault(row.operator, []).append(row)
    lines = []
    for (jobs, replicas), both in by_scenario.items():
        if len(both) < 2:
            continue
        for figure in ("pods_per_second", "calls_per_pod", "cpu_ms_per_pod"):
            ours, theirs = (
                statistics.median(getattr(row, figure) for row in both[name])
                for name in (OURS, training_operator.NAME)
            )
            lines.append(
                f"{jobs}x{replicas} {figure.replace('_', ' ')}: {ours:g} beside {theirs:g}, "
                f"{ours / theirs:.2f} times"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--control-plane",
        choices=[plane.name for plane in PLANES],
        default=EmbeddedControlPlane.name,
        help="as in e2e/README.md; default %(default)s",
    )
    parser.add_argument(
        "--scenario",
        metavar="JOBSxREPLICAS",
        type=_scenario,
        action="append",
        help="once or more; default " + " ".join(f"{j}x{r}" for j, r in SCENARIOS),
    )
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    (kind,) = [plane for plane in PLANES if plane.name == given.control_plane]
    try:
        with kind() as plane:
            rows = asyncio.run(benchmark(plane, given.scenario or SCENARIOS, given.repeat))
    except ControlPlaneError as error:
        raise SystemExit(f"error: {error}") from error
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table(*(name.replace("_", " ") for name in Row.__dataclass_fields__))
    for row in rows:
        table.add_row(*(str(value) for value in asdict(row).values()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(table)
    for line in ratios(rows):
        console.print(line, highlight=False)


def _scenario(text: str) -> tuple[int, int]:
    jobs, _, replicas = text.partition("x")
    if jobs.isdecimal() and replicas.isdecimal() and int(jobs) and int(replicas):
        return int(jobs), int(replicas)
    raise argparse.ArgumentTypeError(f"expected JOBSxREPLICAS like 100x10, found {text!r}")


if __name__ == "__main__":
    main()
