"""Workers lost for good, and jobs that change by whole units of pods, with real training."""

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
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True)
class Job(DemoJob):
    restart_policy: str = "OnFailure"
    node_unit: int = 1

    def manifest(self, out: Path) -> dict[str, Any]:
        body = DemoJob.manifest(self, out)
        body["spec"]["elasticPolicy"]["nodeUnit"] = self.node_unit
        worker = body["spec"]["pytorchReplicaSpecs"]["Worker"]
        worker["restartPolicy"], worker["replicas"] = self.restart_policy, self.min
        return body


@pytest.fixture
async def four_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Four nodes of one GPU each."""
    async with running(fresh_control_plane, tmp_path, nodes=4, gpus_per_node=1) as stage:
        yield stage


async def test_a_worker_lost_for_good_makes_the_job_smaller(four_nodes: Stage) -> None:
    stage, client = four_nodes, four_nodes.recorder.jobs.client
    job = Job("job", 1, 3, 6, 0.1, restart_policy="Never")
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 3, "job trains")
    await stage.steps_on(job)
    kept = {i: await client.get(PODS, f"job-worker-{i}", "default") for i in (0, 1)}
    fault = {"metadata": {"annotations": {ANNOTATION: "kill"}}}
    await client.patch(PODS, "job-worker-2", "default", fault)
    await stage.until(
        lambda: any(c.reason == "ReplicasFailed" for c in stage.changes), "its size follows"
    )
    await stage.steps_on(job)
    assert 2 in stage.worlds(job), "the others go on at once"
    for index, before in kept.items():
        pod = await client.get(PODS, f"job-worker-{index}", "default")
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]
    await stage.judge_finished(job)


async def test_pods_come_and_go_in_whole_units(four_nodes: Stage) -> None:
    stage, client = four_nodes, four_nodes.recorder.jobs.client
    job = Job("job", 2, 4, 8, 0.1, node_unit=2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 4, "job grows to all nodes")
    await stage.steps_on(job)
    container = {
        "name": "pytorch",
        "image": "any",
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    other = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "other", "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }
    await client.create(PYTORCHJOBS, other)
    await stage.until(lambda: stage.world(job) == 2, "a whole unit makes room")
    await stage.steps_on(job)
    assert all(change.new % 2 == 0 for change in stage.changes if change.job == "job")
    assert all(world % 2 == 0 for world in stage.worlds(job))
    await stage.judge_finished(job)
