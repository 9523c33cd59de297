"""D9, scaled down: a job under a limit of 15 CPUs whose owner guessed 8 for a worker begins with
one, and has by itself what the limit carries once it was measured for seconds, not minutes.

The processes' control group is a folder here that says what a container of 3 CPUs would, and the
parameter server's load is what an adapter of the metrics API would tell: nothing here has
containers. All behind that is as it is in a cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, running
from e2e.test_brain import METRICS
from e2e.test_parameter_servers import ServedJob
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.brain.test_program import brain
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION, CPU_LIMIT_ANNOTATION
from volcano_elastic.brain.program import POD_METRICS
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.resource import (
    CRDS,
    PODS,
    PYTORCHJOBS,
    QUEUEPOLICIES,
    QUEUES,
    SCALEPLANS,
)
from volcano_elastic.pytorchjob.label import JOB_NAME

pytestmark = pytest.mark.e2e

LIMIT, USED, GUESSED = 15, 3.0, 8
MEMORY = 300 << 20


def guessed(manifest: dict[str, Any], group: Path) -> dict[str, Any]:
    """Return the job as somebody writes it who doesn't know what it needs."""
    manifest["metadata"]["annotations"] = {
        BRAIN_ANNOTATION: "Live",
        CPU_LIMIT_ANNOTATION: str(LIMIT),
    }
    manifest["spec"]["elasticPolicy"]["cooldownSeconds"] = 0
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": str(GUESSED), "memory": "512Mi"}}
    container["env"] = [{"name": "VOLCANO_ELASTIC_CONTROL_GROUP", "value": str(group)}]
    return manifest


class AllReduce(DemoJob):
    def manifest(self, out: Path) -> dict[str, Any]:
        return guessed(DemoJob.manifest(self, out), out / "group")


class Served(ServedJob):
    """With one parameter server, whose CPU is guessed well."""

    def manifest(self, out: Path) -> dict[str, Any]:
        manifest = guessed(ServedJob.manifest(self, out), out / "group")
        servers = manifest["spec"]["pytorchReplicaSpecs"]["PS"]
        servers["replicas"] = 1
        (container,) = servers["template"]["spec"]["containers"]
        container["resources"] = {"requests": {"cpu": "2", "memory": "512Mi"}}
        return manifest


@asynccontextmanager
async def control_group(folder: Path) -> AsyncIterator[None]:
    """Says what a container does that uses 3 CPUs all the time."""
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory\n")
    (folder / "memory.current").write_text(f"{MEMORY}\n")
    (folder / "memory.stat").write_text("inactive_file 0\n")

    def tick() -> None:
        told = folder / "cpu.stat.new"
        told.write_text(f"usage_usec {round(time.monotonic() * USED * 1e6)}\n")
        told.replace(folder / "cpu.stat")

    async def run() -> None:
        while True:
            tick()
            await asyncio.sleep(0.1)

    tick()
    running_ = asyncio.create_task(run())
    try:
        yield
    finally:
        running_.cancel()
        await asyncio.gather(running_, return_exceptions=True)


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """A queue of 15 CPUs, and Brain, which judges after five seconds instead of three minutes."""
    url, log = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "brain.log"
    async with (
        running(fresh_control_plane, tmp_path, nodes=1, gpus_per_node=0) as found,
        control_group(found.out / "group"),
        brain(found.plane.kubeconfig, url, log, "--live-after-seconds", "5"),
    ):
        client = found.recorder.jobs.client
        await client.patch(QUEUES, "default", None, {"spec": {"capability": {"cpu": LIMIT}}})
        policy = {
            "apiVersion": QUEUEPOLICIES.api_version,
            "kind": "QueuePolicy",
            "metadata": {"name": "default"},
            "spec": {"queue": "default", "resource": "cpu", "grow": {"cooldownSeconds": 0}},
        }
        await client.create(QUEUEPOLICIES, policy)
        yield found


async def speeds(stage: Stage, job: DemoJob) -> dict[str, float]:
    found = await stage.recorder.jobs.client.get(PYTORCHJOBS, job.name, "default")
    return dict((found["status"].get("elastic") or {}).get("speeds") or {})


async def grows(stage: Stage, job: DemoJob, wanted: int) -> None:
    """Waits until the job has grown by itself, and both speeds were measured."""

    async def measured() -> bool:
        return {"1", str(wanted)} <= (await speeds(stage, job)).keys()

    await stage.until(lambda: stage.world(job) == wanted, f"{job.name} has {wanted} workers", 150)
    await stage.until_asked(measured, "both speeds are known")
    found = await speeds(stage, job)
    before, after = found["1"], found[str(wanted)]
    print(f"{job.name}: {before:.1f} -> {after:.1f} samples/s with 1 and {wanted} workers")
    assert after > before
    assert stage.worlds(job)[0] == 1


async def test_an_all_reduce_job_grows_to_what_15_cpus_carry(stage: Stage) -> None:
    job = AllReduce("alone", min=1, max=8, epochs=1000, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 1, "it begins with the worker that fits")
    # p95 of 3 CPUs in the histogram's bucket, and 15 %: four of them.
    await grows(stage, job, 4)
    pods = (await stage.recorder.jobs.client.list(PODS, "default"))["items"]
    asked = {p["spec"]["containers"][0]["resources"]["requests"]["cpu"] for p in pods}
    (cpu,) = asked
    assert 3 * 4 <= 4 * int(cpu.removesuffix("m")) / 1000 <= LIMIT


async def test_a_job_with_a_parameter_server_gets_a_plan_of_its_own(stage: Stage) -> None:
    client = stage.recorder.jobs.client
    job = Served("served", min=1, max=8, epochs=1000, step_seconds=0.2)
    await client.create(CRDS, METRICS)
    metrics = {
        "apiVersion": POD_METRICS.api_version,
        "kind": POD_METRICS.kind,
        "metadata": {
            "name": "served-ps-0",
            "namespace": "default",
            "labels": {JOB_NAME: "served"},
        },
        "containers": [{"name": "pytorch", "usage": {"cpu": "400m", "memory": "200Mi"}}],
    }

    async def served() -> bool:
        try:
            await client.create(POD_METRICS, metrics)
        except ApiError:
            return False
        return True

    await stage.until_asked(served, "the metrics API is served")
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 1, "it begins with the worker that fits")
    # 15 / (3 + 0.4): four; 13 CPUs beside the server's 2 are 3.25 for each.
    await grows(stage, job, 4)
    plan = await client.get(SCALEPLANS, "served-brain", "default")
    worker = plan["spec"]["replicaResourceSpecs"]["Worker"]
    assert worker["replicas"] == 4
    assert plan["metadata"]["labels"] == {"scale-type": "auto"}
    assert plan["metadata"]["annotations"]["volcano-elastic.io/reason"].endswith("15 CPU carry 4")
