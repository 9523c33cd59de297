"""Jobs × replicas created, running and deleted, by the operator as a process of its own.

    python -m benchmarks.operator [--scenario JOBSxREPLICAS ...] [--kubeconfig FILE] [--json]

Without --kubeconfig it starts the embedded API server; the nodes are played by this program, and
nothing schedules. Where TRAINING_OPERATOR_BIN names Kubeflow's training-operator, that is measured
too, by the same steps, with its limits raised (--kube-api-qps 2000, 10 threads).

`calls a pod` counts every request of the operator while the pods were created, but watches and the
lease; `idle calls` those of 10 s in which nothing changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from volcano_elastic.kube.client import Client, NotFound
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.resource import NAMESPACES, PODS, PYTORCHJOBS, SERVICES, Object
from volcano_elastic.local.cluster import LocalCluster
from volcano_elastic.local.component import Component

NAMESPACE = "operator-benchmark"
SCENARIOS = ((1, 1000), (100, 10), (1000, 1))
AT_ONCE = 32
IDLE_SECONDS = 10.0
PATIENCE_SECONDS = 900.0
OURS, KUBEFLOWS = "volcano-elastic", "training-operator"


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

    def __init__(self, name: str, kubeconfig: Path, folder: Path) -> None:
        self._port = _free_port()
        address = f"127.0.0.1:{self._port}"
        if name == OURS:
            command = [sys.executable, "-m", "volcano_elastic.operator"]
            command += ["--kubeconfig", str(kubeconfig), "--metrics-address", address]
        else:
            command = [os.environ["TRAINING_OPERATOR_BIN"], "--enable-scheme=pytorchjob"]
            command += [f"--kubeconfig={kubeconfig}", f"--metrics-bind-address={address}"]
            command += ["--kube-api-qps=2000", "--kube-api-burst=2000", "--controller-threads=10"]
            command += [f"--health-probe-bind-address=127.0.0.1:{_free_port()}"]
            command += [f"--webhook-server-port={_free_port()}"]
        self.name = name
        self._process = Component(name, command, folder / f"{name}.log")

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


async def at_once(works: Iterable[Awaitable[object]]) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[object]) -> None:
        async with free:
            await work

    await asyncio.gather(*(one(work) for work in works))


def job(index: int, replicas: int) -> Object:
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
        "metadata": {"name": f"job-{index}", "namespace": NAMESPACE},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


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

    try:
        for informer in watched.values():
            await informer.synced.wait()
        calls, cpu, began = await operator.calls(), operator.cpu_seconds(), time.monotonic()
        await at_once(client.create(PYTORCHJOBS, job(i, replicas)) for i in range(jobs))
        await until(count(wanted, wanted), f"{wanted} pods and services")
        created = time.monotonic() - began
        # Its last statuses and events belong to the creation too.
        await asyncio.sleep(1)
        calls, cpu = await operator.calls() - calls, operator.cpu_seconds() - cpu
        await at_once(run(pod) for pod in watched[PODS])
        began = time.monotonic()
        await until(run_all, "all jobs run")
        ran = time.monotonic() - began
        await asyncio.sleep(2)
        idle = await operator.calls()
        await asyncio.sleep(IDLE_SECONDS)
        idle = await operator.calls() - idle
        memory = operator.memory_mib()
        began = time.monotonic()
        await at_once(
            client.delete(PYTORCHJOBS, f"job-{i}", NAMESPACE, propagation_policy="Background")
            for i in range(jobs)
        )
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


async def benchmark(kubeconfig: Path, scenarios: Iterable[tuple[int, int]]) -> list[Row]:
    rows = []
    names = [OURS] + [KUBEFLOWS] * bool(os.environ.get("TRAINING_OPERATOR_BIN"))
    async with Client.from_kubeconfig(str(kubeconfig)) as client:
        meta = {"metadata": {"name": NAMESPACE}}
        try:
            await client.get(NAMESPACES, NAMESPACE)
        except NotFound:
            await client.create(NAMESPACES, meta)
        with tempfile.TemporaryDirectory() as folder:
            for jobs, replicas in scenarios:
                for name in names:
                    operator = Operator(name, kubeconfig, Path(folder))
                    async with operator.running():
                        rows.append(await measure(client, operator, jobs, replicas))
        await client.delete(NAMESPACES, NAMESPACE)
    return rows


async def run(kubeconfig: Path | None, scenarios: Iterable[tuple[int, int]]) -> list[Row]:
    if kubeconfig is not None:
        return await benchmark(kubeconfig, scenarios)
    async with LocalCluster(kubelet="none", scheduler=False, operator=False) as cluster:
        return await benchmark(cluster.kubeconfig, scenarios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kubeconfig", type=Path, help="a cluster of yours, with our CRDs")
    parser.add_argument(
        "--scenario",
        metavar="JOBSxREPLICAS",
        type=_scenario,
        action="append",
        help="once or more; default " + " ".join(f"{j}x{r}" for j, r in SCENARIOS),
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    rows = asyncio.run(run(given.kubeconfig, given.scenario or SCENARIOS))
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table(*(name.replace("_", " ") for name in Row.__dataclass_fields__))
    for row in rows:
        table.add_row(*(str(value) for value in asdict(row).values()))
    Console().print(table)


def _scenario(text: str) -> tuple[int, int]:
    jobs, _, replicas = text.partition("x")
    if jobs.isdecimal() and replicas.isdecimal() and int(jobs) and int(replicas):
        return int(jobs), int(replicas)
    raise argparse.ArgumentTypeError(f"expected JOBSxREPLICAS like 100x10, found {text!r}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
