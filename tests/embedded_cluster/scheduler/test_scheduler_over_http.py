"""The scheduler as a process, against the embedded API server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import PATIENCE, eventually
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.event import timestamp
from volcano_elastic.kube.resource import CRDS, EVENTS, NODES, PODGROUPS, PODS, QUEUES

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
GPU = "nvidia.com/gpu"


async def start(*argv: str, **pipes: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", *argv, cwd=ROOT, **pipes)


async def stop(process: asyncio.subprocess.Process, number: int = signal.SIGTERM) -> int:
    if process.returncode is None:
        process.send_signal(number)
    try:
        return await asyncio.wait_for(process.wait(), 60)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[Path]:
    """The kubeconfig of a fresh one."""
    token = folder / "token"
    token.write_text("secret-of-this-test")
    server = await start(
        "embedded_cluster.apiserver",
        *("--port", "0", "--token-file", str(token)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        line = (await asyncio.wait_for(server.stdout.readline(), PATIENCE)).decode().strip()
        assert line.startswith("listening on "), line
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "clusters": [
                        {"name": "test", "cluster": {"server": line.removeprefix("listening on ")}}
                    ],
                    "users": [{"name": "test", "user": {"token": token.read_text()}}],
                }
            )
        )
        yield kubeconfig
    finally:
        await stop(server)


@asynccontextmanager
async def scheduler(kubeconfig: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await start(
        "embedded_cluster.scheduler",
        *("--kubeconfig", str(kubeconfig), "--listen-address", ":0"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def scheduled(tmp_path: Path) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """A client of an API server beside which a scheduler runs."""
    async with (
        api_server(tmp_path) as kubeconfig,
        Client.from_kubeconfig(str(kubeconfig)) as client,
        scheduler(kubeconfig) as running,
    ):
        yield client, running


async def install(client: Client, gpus: int) -> None:
    for file in sorted((ROOT / "crds").glob("scheduling.volcano.sh_*.yaml")):
        await client.create(CRDS, yaml.safe_load(file.read_text()))
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110", GPU: str(gpus)}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}}
    await client.create(NODES, node)
    status = {"capacity": allocatable, "allocatable": allocatable}
    await client.patch(NODES, "n1", None, {"status": status}, subresource="status")


async def gang(
    client: Client, name: str, minimum: int, pods: int, cooldown: str | None = None
) -> None:
    group = {
        "apiVersion": PODGROUPS.api_version,
        "kind": PODGROUPS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": minimum, "minResources": {GPU: minimum}},
    }
    await client.create(PODGROUPS, group)
    for index in range(pods):
        annotations = {
            "scheduling.k8s.io/group-name": name,
            "volcano.sh/preemptable": str(index >= minimum).lower(),
        }
        container = {"name": "c", "image": "i", "resources": {"limits": {GPU: 1}}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-worker-{index}",
                "namespace": "default",
                "labels": {"volcano.sh/cooldown-time": cooldown} if cooldown else {},
                "annotations": annotations,
            },
            "spec": {"schedulerName": "volcano", "containers": [container]},
        }
        await client.create(PODS, pod)


async def phase(client: Client, name: str) -> str:
    group = await client.get(PODGROUPS, name, "default")
    return str(group.get("status", {}).get("phase"))


async def bound(client: Client, name: str) -> list[str]:
    pods = (await client.list(PODS, "default"))["items"]
    return sorted(
        pod["metadata"]["name"].removeprefix(f"{name}-worker-")
        for pod in pods
        if pod["metadata"]["name"].startswith(name) and pod["spec"].get("nodeName") == "n1"
    )


async def test_gangs_are_bound_surplus_is_evicted_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    async with (
        api_server(tmp_path) as kubeconfig,
        Client.from_kubeconfig(str(kubeconfig)) as client,
    ):
        await install(client, gpus=4)
        async with scheduler(kubeconfig) as first:
            await gang(client, "a", 1, 4)
            await eventually(lambda: _is_bound(client, "a", "0", "1", "2", "3"), "a is bound")
            await eventually(lambda: _is(phase(client, "a"), "Running"), "a runs")
            queue = await client.get(QUEUES, "default")
            assert queue["status"]["state"] == "Open"
            assert queue["status"]["allocated"][GPU] == "4"
            first.send_signal(signal.SIGKILL)
            await first.wait()

        await gang(client, "b", 2, 3)
        async with scheduler(kubeconfig) as second:
            two = ("a-worker-2", "a-worker-3")
            await eventually(lambda: _is_leaving(client, *two), "a's surplus leaves")
            pod = await client.get(PODS, "a-worker-3", "default")
            told = {c["type"]: c for c in pod["status"]["conditions"]}
            assert told["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
            assert told["Ready"]["reason"] == "Evict"
            events = (await client.list(EVENTS, "default"))["items"]
            assert {
                (e["type"], e["involvedObject"]["kind"], e["involvedObject"]["name"], e["message"])
                for e in events
                if e["reason"] == "Evict"
            } == {
                ("Warning", "Pod", "a-worker-2", "Pod is evicted, because of preempt"),
                ("Warning", "Pod", "a-worker-3", "Pod is evicted, because of preempt"),
                ("Normal", "PodGroup", "a", "preempt"),
            }
            # There is no kubelet in this test.
            for name in two:
                await client.delete(PODS, name, "default", grace_period_seconds=0)
            await eventually(lambda: _is_bound(client, "b", "0", "1"), "b's minimum is bound")

            surplus = await client.get(PODS, "b-worker-2", "default")
            (condition,) = surplus["status"]["conditions"]
            assert (condition["type"], condition["reason"]) == ("PodScheduled", "Unschedulable")
            await eventually(lambda: _is(phase(client, "b"), "Running"), "b runs")

            async def rests() -> bool:
                before = await _versions(client)
                await asyncio.sleep(1)
                return await _versions(client) == before

            await eventually(rests, "at rest, the scheduler writes nothing")
            assert await stop(second) == 0


async def _is_bound(client: Client, name: str, *indexes: str) -> bool:
    return await bound(client, name) == list(indexes)


async def _leaving(client: Client) -> list[str]:
    pods = (await client.list(PODS, "default"))["items"]
    return sorted(p["metadata"]["name"] for p in pods if p["metadata"].get("deletionTimestamp"))


async def _is_leaving(client: Client, *pods: str) -> bool:
    return await _leaving(client) == list(pods)


async def _is(value: Awaitable[str], expected: str) -> bool:
    return await value == expected


def _metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def _versions(client: Client) -> list[str]:
    lists = [await client.list(resource) for resource in (PODS, PODGROUPS, QUEUES)]
    return [item["metadata"]["resourceVersion"] for each in lists for item in each["items"]]


async def test_while_pods_cool_it_rests_and_then_looks_again(tmp_path: Path) -> None:
    async with scheduled(tmp_path) as (client, running):
        assert running.stderr is not None
        await asyncio.wait_for(running.stderr.readuntil(b"metrics on port "), PATIENCE)
        port = int(await running.stderr.readline())
        await install(client, gpus=2)
        await gang(client, "a", 1, 2, cooldown="1h")
        await eventually(lambda: _is_bound(client, "a", "0", "1"), "a is bound")
        await _runs(client, "a-worker-1", since=datetime.now(UTC))
        await gang(client, "b", 1, 1)

        async def rests() -> bool:
            before = await asyncio.to_thread(_metrics, port)
            await asyncio.sleep(1)
            after = await asyncio.to_thread(_metrics, port)
            sessions = "scheduler_sessions_total"
            assert await _leaving(client) == []
            return before[sessions] == after[sessions]

        await eventually(rests, "b waits, and nobody looks")
        await _runs(
            client, "a-worker-1", since=datetime.now(UTC) - timedelta(minutes=59, seconds=57)
        )
        await eventually(
            lambda: _is_leaving(client, "a-worker-1"), "a's surplus has cooled and leaves"
        )
        assert await stop(running) == 0


async def test_a_write_that_failed_is_tried_again_though_nothing_changes(tmp_path: Path) -> None:
    async with scheduled(tmp_path) as (client, running):
        assert running.stderr is not None
        await install(client, gpus=1)
        await gang(client, "a", 1, 1)
        await eventually(lambda: _is(phase(client, "a"), "Running"), "a runs")
        name = "podgroups.scheduling.volcano.sh"
        versions = (await client.get(CRDS, name))["spec"]["versions"]
        status = versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        allowed, status["phase"]["enum"] = dict(status["phase"]), ["Running"]
        await client.patch(CRDS, name, None, {"spec": {"versions": versions}})
        await client.delete(PODS, "a-worker-0", "default", grace_period_seconds=0)
        for _ in range(4):
            failed = running.stderr.readuntil(b"status of PodGroup default/a failed")
            await asyncio.wait_for(failed, PATIENCE)
        status["phase"] = allowed
        await client.patch(CRDS, name, None, {"spec": {"versions": versions}})
        await eventually(
            lambda: _is(phase(client, "a"), "Inqueue"), "the phase is written after all"
        )
        assert await stop(running) == 0


async def _runs(client: Client, pod: str, *, since: datetime) -> None:
    """Say that it runs, as a kubelet would."""
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(since)}
    status = {"phase": "Running", "conditions": [bound]}
    await client.patch(PODS, pod, "default", {"status": status}, subresource="status")


async def test_it_stops_cleanly_though_no_server_answers(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "x", "user": {}}],
            }
        )
    )
    process = await start(
        "embedded_cluster.scheduler",
        *("--kubeconfig", str(kubeconfig)),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), PATIENCE)
    assert b"watching" in line
    assert await stop(process) == 0
