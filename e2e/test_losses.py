"""A worker is lost for good in a job that changes by whole units of pods, with real training."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.kubelet.fault import ANNOTATION
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import NODES, PODS, PYTORCHJOBS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]


@dataclass(frozen=True, slots=True)
class Job(DemoJob):
    def manifest(self, out: Path) -> dict[str, Any]:
        body = DemoJob.manifest(self, out)
        body["spec"]["elasticPolicy"]["nodeUnit"] = 2
        worker = body["spec"]["pytorchReplicaSpecs"]["Worker"]
        worker["restartPolicy"], worker["replicas"] = "Never", self.min
        return body


@dataclass(frozen=True, slots=True)
class Restarting(Job):
    def manifest(self, out: Path) -> dict[str, Any]:
        body = Job.manifest(self, out)
        body["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
        return body


@pytest.fixture
async def four_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Four nodes of one GPU each."""
    watched = ("--node-monitor-grace-period", "4")
    async with running(
        fresh_control_plane, tmp_path, nodes=4, gpus_per_node=1, kubelet_arguments=watched
    ) as stage:
        yield stage


async def test_a_worker_lost_for_good_takes_its_unit_along_and_another_unit_comes(
    four_nodes: Stage,
) -> None:
    stage, client = four_nodes, four_nodes.recorder.jobs.client
    job = Job("job", 2, 4, 8, 0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 4, "job grows to all nodes")
    await stage.steps_on(job)
    kept = {i: await client.get(PODS, f"job-worker-{i}", "default") for i in (0, 1)}
    fault = {"metadata": {"annotations": {ANNOTATION: "kill"}}}
    await client.patch(PODS, "job-worker-3", "default", fault)
    await stage.until(
        lambda: any(c.reason == "ReplicasFailed" for c in stage.changes), "its size follows"
    )
    await stage.until(lambda: 2 in stage.worlds(job), "the others go on at once")
    await stage.until(lambda: stage.world(job) == 4, "a whole unit comes back")
    for index, before in kept.items():
        pod = await client.get(PODS, f"job-worker-{index}", "default")
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]
    assert all(world % 2 == 0 for world in stage.worlds(job))
    await stage.judge_finished(job)


async def test_a_lost_node_takes_its_unit_along_until_it_is_back(four_nodes: Stage) -> None:
    stage, client = four_nodes, four_nodes.recorder.jobs.client
    job = Restarting("job", 2, 4, 8, 0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 4, "job grows to all nodes")
    await stage.steps_on(job)
    kept = {i: await client.get(PODS, f"job-worker-{i}", "default") for i in (0, 1)}
    node = (await client.get(PODS, "job-worker-3", "default"))["spec"]["nodeName"]
    await client.patch(NODES, node, None, {"metadata": {"annotations": {ANNOTATION: "down"}}})
    await stage.until(lambda: stage.world(job) == 2, "a unit less goes on")
    await stage.steps_on(job)
    await client.patch(NODES, node, None, {"metadata": {"annotations": {ANNOTATION: None}}})
    await stage.until(lambda: stage.world(job) == 4, "the unit comes back")
    for index, before in kept.items():
        pod = await client.get(PODS, f"job-worker-{index}", "default")
        assert pod["metadata"]["uid"] == before["metadata"]["uid"], "a healthy pod stays"
    assert all(world % 2 == 0 for world in stage.worlds(job))

    async def ledger() -> Any:
        status = (await client.get(PYTORCHJOBS, "job", "default"))["status"]
        return status["elastic"]["goodput"]

    async def trained() -> bool:
        return bool((await ledger())["milliseconds"]["productive_training"] > 0)

    async def counted() -> bool:
        return "podsUntil" in await ledger() and await trained()

    # The coordinator is asked each ten seconds: a shorter job than that would have none.
    await stage.until_asked(trained, "the ledger has training")
    await stage.judge_finished(job)
    # What was told last is written as the job ends. (A pod that began within the second in which
    # it got its place adds 0 to its job's startups: Kubernetes tells seconds.)
    await stage.until_asked(counted, "the ledger has training, and pods' startups", 30)
