"""The operator as a process against the embedded API server; nodes are played by the test."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.operator.process import FakeNodes, OperatorProcess, install, job
from tests.patience import eventually
from volcano_elastic.api import moment
from volcano_elastic.kube.client import Client, NotFound
from volcano_elastic.kube.resource import (
    AUTOSCALERS,
    EVENTS,
    PODGROUPS,
    PODS,
    PYTORCHJOBS,
    SERVICES,
)
from volcano_elastic.operator.handover import ADMISSION_LIMIT

pytestmark = pytest.mark.process

Object = dict[str, Any]


@dataclass
class Scene:
    client: Client
    nodes: FakeNodes
    operator: OperatorProcess

    async def names(self, name: str) -> list[str]:
        """The job's pods that are there to stay."""
        selector = f"training.kubeflow.org/job-name={name}"
        pods = await self.client.list(PODS, "default", label_selector=selector)
        return sorted(
            p["metadata"]["name"]
            for p in pods["items"]
            if not p["metadata"].get("deletionTimestamp")
        )

    async def status(self, name: str) -> Object:
        found = await self.client.get(PYTORCHJOBS, name, "default")
        status: Object = found.get("status") or {}
        return status

    async def runs(self, name: str, size: int) -> bool:
        elastic = (await self.status(name)).get("elastic") or {}
        return bool(elastic.get("desired") == elastic.get("ready") == size) and (
            len(await self.names(name)) == size
        )

    async def ended(self, name: str) -> str:
        conditions = (await self.status(name)).get("conditions") or []
        return next(
            (c["type"] for c in conditions if c["type"] in ("Succeeded", "Failed")),
            "",
        )

    async def events(self, name: str) -> list[Object]:
        found = await self.client.list(EVENTS, "default")
        return [e for e in found["items"] if e["involvedObject"]["name"] == name]

    async def wait_for_size(self, name: str, size: int) -> None:
        await eventually(lambda: self.runs(name, size), f"{name} runs with {size}")


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    with ApiServerProcess(folder) as server:
        async with server.client() as client:
            operator = OperatorProcess(server.kubeconfig())
            nodes = FakeNodes(client)
            # Started before its kinds exist: it waits for them.
            await operator.start(wait=False)
            try:
                await install(client)
                await operator.ready()
                async with nodes.running():
                    yield Scene(client, nodes, operator)
            finally:
                await operator.stop(signal.SIGKILL)


async def test_a_job_becomes_podgroup_services_pods_and_status(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.client.create(PYTORCHJOBS, job("a", 2, 3))
        await s.wait_for_size("a", 3)
        group = await s.client.get(PODGROUPS, "a", "default")
        assert group["spec"]["minMember"] == 2
        assert group["spec"]["minResources"] == {"nvidia.com/gpu": "2"}
        services = await s.client.list(SERVICES, "default")
        assert [x["metadata"]["name"] for x in services["items"]] == await s.names("a")
        status = await s.status("a")
        assert [c["type"] for c in status["conditions"]] == ["Created", "Running"]
        elastic = status["elastic"]
        assert (elastic["min"], elastic["max"]) == (2, 3)
        assert elastic["lastScaleReason"] == "GrewIntoIdle"
        reasons = {e["reason"]: e["message"] for e in await s.events("a")}
        assert reasons["GrewIntoIdle"] == elastic["message"]
        assert "PyTorchJobRunning" in reasons

        await s.nodes.end("a-worker-1", "Succeeded", 0)
        await eventually(lambda: s.ended("a"), "the job is over")
        assert await s.ended("a") == "Succeeded"
        for name in ("a-worker-0", "a-worker-2"):
            await s.nodes.end(name, "Succeeded", 0)

        async def podgroup_gone() -> bool:
            try:
                await s.client.get(PODGROUPS, "a", "default")
            except NotFound:
                return True
            return False

        await eventually(podgroup_gone, "the PodGroup goes when nothing is active")
        assert await s.operator.stop() == 0


async def test_surplus_leaves_before_a_newcomers_pods_come(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.client.create(PYTORCHJOBS, job("a", 1, 4))
        await s.wait_for_size("a", 4)
        watched: list[tuple[str, str]] = []

        async def watch() -> None:
            version = (await s.client.list(PODS, "default"))["metadata"]["resourceVersion"]
            started.set()
            async for kind, pod in s.client.watch(PODS, "default", resource_version=version):
                gone = kind == "MODIFIED" and pod["metadata"].get("deletionTimestamp")
                watched.append(("LEAVES" if gone else kind, pod["metadata"]["name"]))

        started = asyncio.Event()
        watching = asyncio.create_task(watch())
        await started.wait()
        await s.client.create(PYTORCHJOBS, job("b", 2, 4, cooldownSeconds=60))
        await s.wait_for_size("b", 2)
        await s.wait_for_size("a", 2)
        watching.cancel()
        leaves = [i for i, (kind, _) in enumerate(watched) if kind == "LEAVES"]
        comes = [i for i, (kind, name) in enumerate(watched) if (kind, name[0]) == ("ADDED", "b")]
        assert len(leaves) >= 2 and len(comes) == 2
        # On a busy machine no plan may come within ADMISSION_LIMIT, and then nobody waits for one.
        newcomer = await s.client.get(PYTORCHJOBS, "b", "default")
        pod = await s.client.get(PODS, watched[comes[0]][1], "default")
        asked, made = (moment.parse(o["metadata"]["creationTimestamp"]) for o in (newcomer, pod))
        assert leaves[1] < comes[0] or made - asked >= ADMISSION_LIMIT, watched
        elastic = (await s.status("a"))["elastic"]
        assert elastic["lastScaleReason"] == "ShrunkForMinimum"
        assert "b needs 2 GPUs to start" in elastic["message"]
        assert "a-worker-0" in await s.names("a")
        assert await s.operator.stop() == 0


async def test_an_operator_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.client.create(PYTORCHJOBS, job("a", 2, 4))
        # Into the creation, the growth and whatever it is at then.
        for delay in (0.02, 0.1, 0.3):
            await asyncio.sleep(delay)
            await s.operator.stop(signal.SIGKILL)
            await s.operator.start()
        await s.wait_for_size("a", 4)
        assert await s.names("a") == [f"a-worker-{i}" for i in range(4)]
        # Every pod that ever was is still there: none was made twice.
        assert sorted(s.nodes.seen.values()) == await s.names("a")

        await s.operator.stop(signal.SIGKILL)
        before = {p["metadata"]["uid"] for p in (await s.client.list(PODS))["items"]}
        failed = await s.client.get(PODS, "a-worker-3", "default")
        await s.nodes.end("a-worker-3", "Failed", 137)
        await s.operator.start()

        async def made_again() -> bool:
            try:
                found = await s.client.get(PODS, "a-worker-3", "default")
            except NotFound:
                return False
            return bool(found["metadata"]["uid"] != failed["metadata"]["uid"])

        await eventually(made_again, "the failed pod comes back at its index")
        await s.wait_for_size("a", 4)
        after = {p["metadata"]["uid"] for p in (await s.client.list(PODS))["items"]}
        assert len(before & after) == 3 and len(after) == 4
        assert await s.names("a") == [f"a-worker-{i}" for i in range(4)]


async def test_a_pod_that_is_not_the_jobs_is_never_taken_for_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        body = job("a", 1, 1)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        meta = {"name": "a-worker-0", "namespace": "default"}
        stranger = {"apiVersion": "v1", "kind": "Pod", "metadata": meta} | body
        made = await s.client.create(PODS, stranger)
        await s.client.create(PYTORCHJOBS, job("a", 1, 1))
        await asyncio.sleep(0.5)
        found = await s.client.get(PODS, "a-worker-0", "default")
        assert found["metadata"]["uid"] == made["metadata"]["uid"]
        assert await s.names("a") == []
        await s.client.delete(PODS, "a-worker-0", "default")
        await s.wait_for_size("a", 1)


async def test_what_the_api_server_refuses_is_told_once_and_names_the_reason(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        wrong = job("wrong", 1, 1)
        template = wrong["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        template["spec"]["containers"] += [{"name": "twice", "image": "x"}] * 2
        await s.client.create(PYTORCHJOBS, wrong)

        async def told() -> list[Object]:
            return [e for e in await s.events("wrong") if e["reason"] == "FailedCreatePod"]

        await eventually(told, "a Warning event says so")
        await asyncio.sleep(1.5)  # it has been tried again by now
        (event,) = await told()
        assert event["type"] == "Warning" and "twice" in event["message"]


async def test_metrics_bring_an_autoscaler_that_ends_with_the_job(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        target = {"type": "AverageValue", "averageValue": "1500m"}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
        await s.client.create(PYTORCHJOBS, job("a", 1, 3, metrics=[metric]))
        await eventually(lambda: s.names("a"), "the job has pods")
        found = await s.client.get(AUTOSCALERS, "a", "default")
        assert found["spec"]["maxReplicas"] == 3
        assert found["metadata"]["ownerReferences"][0]["kind"] == "PyTorchJob"
        version = found["metadata"]["resourceVersion"]
        await s.nodes.patch("a-worker-0", {"phase": "Running"})
        await asyncio.sleep(0.5)
        again = await s.client.get(AUTOSCALERS, "a", "default")
        assert again["metadata"]["resourceVersion"] == version, "it is right as it is"
        await s.nodes.end("a-worker-0", "Succeeded", 0)

        async def gone() -> bool:
            return not (await s.client.list(AUTOSCALERS, "default"))["items"]

        await eventually(gone, "the autoscaler goes with the job's end")


async def test_somebody_elses_autoscaler_is_left_alone_and_the_job_goes_on(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        meta = {"name": "a", "namespace": "default"}
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        spec = {"scaleTargetRef": target, "maxReplicas": 9}
        kind = {"apiVersion": AUTOSCALERS.api_version, "kind": AUTOSCALERS.kind}
        await s.client.create(AUTOSCALERS, kind | {"metadata": meta, "spec": spec})
        half = {"type": "Utilization", "averageUtilization": 50}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": half}}
        await s.client.create(PYTORCHJOBS, job("a", 2, 2, metrics=[metric]))
        await s.wait_for_size("a", 2)
        found = await s.client.get(AUTOSCALERS, "a", "default")
        assert found["spec"]["maxReplicas"] == 9 and not found["metadata"].get("ownerReferences")
        (event,) = [e for e in await s.events("a") if e["reason"] == "FailedCreateAutoscaler"]
        assert "belongs to nobody" in event["message"]


async def test_scaling_an_elastic_job_by_hand_brings_one_warning(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.client.create(PYTORCHJOBS, job("a", 1, 1))
        await s.wait_for_size("a", 1)
        scale = {"spec": {"replicas": 3}}
        await s.client.patch(PYTORCHJOBS, "a", "default", scale, subresource="scale")

        async def told() -> list[Object]:
            return [e for e in await s.events("a") if e["reason"] == "ScaleIgnored"]

        await eventually(told, "a Warning event says so")
        await asyncio.sleep(0.5)
        (event,) = await told()
        assert "from 1 to 3" in event["message"]
        assert await s.names("a") == ["a-worker-0"]


async def test_an_invalid_job_is_refused_and_gets_no_pods(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        bad = job("bad", 2, 4)
        # What the CRD's rules don't say.
        worker = bad["spec"]["pytorchReplicaSpecs"]["Worker"]
        worker["template"]["spec"]["containers"][0]["name"] = "main"
        await s.client.create(PYTORCHJOBS, bad)
        assert await eventually(lambda: s.ended("bad"), "the job failed") == "Failed"
        message = (await s.status("bad"))["conditions"][-1]["message"]
        assert "must have at least one container with name pytorch" in message

        async def warned() -> bool:
            found = await s.events("bad")
            return any(e["type"] == "Warning" and e["message"] == message for e in found)

        await eventually(warned, "a Warning event says so")
        await asyncio.sleep(0.3)
        assert await s.names("bad") == []


async def test_a_kubeconfig_that_is_not_there_is_said(tmp_path: Path) -> None:
    operator = OperatorProcess(tmp_path / "nowhere")
    await operator.start(wait=False)
    assert operator.process is not None
    assert await asyncio.wait_for(operator.process.wait(), 120) == 2


@pytest.mark.parametrize("elastic", [True, False])
async def test_an_evicted_pod_that_the_job_needs_comes_back_as_soon_as_it_is_gone(
    tmp_path: Path, elastic: bool
) -> None:
    async with scene(tmp_path) as s:
        wanted = job("a", 1, 1)
        if not elastic:
            del wanted["spec"]["elasticPolicy"]
        await s.client.create(PYTORCHJOBS, wanted)

        async def running() -> int:
            """Return how many pods there were until this one, which runs."""
            pods = (await s.client.list(PODS, "default"))["items"]
            phases = [p["status"].get("phase") for p in pods]
            return len(s.nodes.seen) if phases == ["Running"] else 0

        assert await eventually(running, "it runs") == 1
        # Until nothing else makes the operator look at the job.
        await asyncio.sleep(3)
        told = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastTransitionTime": moment.timestamp(datetime.now(UTC)),
        }
        await s.nodes.patch("a-worker-0", {"conditions": [told]})
        await s.client.delete(PODS, "a-worker-0", "default")

        async def again() -> bool:
            return await running() == 2

        await eventually(again, "its successor runs")
