"""Node checks on a cluster, of a job that asks for one and without a job: the broken are found."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.api.role import elastic
from volcano_elastic.cli.check_nodes import LABEL
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import NODES, PODS, SECRETS, Object

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
_SECONDS = 240.0


@dataclass(frozen=True)
class CheckedJob(DemoJob):
    """One that is checked with all the pods that it may have, however long they take to come."""

    broken: str = ""
    """The node that computes wrongly."""

    def manifest(self, out: Path) -> Object:
        made = DemoJob.manifest(self, out)
        made["spec"]["elasticPolicy"]["rdzvConf"] = [{"key": "node_check", "value": "1"}]
        template = made["spec"]["pytorchReplicaSpecs"][elastic().name]["template"]
        template["spec"]["containers"][0]["env"] = [
            {"name": "VOLCANO_ELASTIC_CHECK_QUIET_SECONDS", "value": "600"},
            {"name": "VOLCANO_ELASTIC_CHECK_SECONDS", "value": "120"},
            {"name": "VOLCANO_ELASTIC_NODE_CHECK_FAULT", "value": f"wrong:{self.broken}"},
        ]
        return made


@pytest.fixture
async def three_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each."""
    async with running(fresh_control_plane, tmp_path, nodes=3, gpus_per_node=1) as stage:
        yield stage


async def test_a_node_that_the_check_finds_faulty_does_not_train(
    three_nodes: Stage,
) -> None:
    stage, client = three_nodes, three_nodes.recorder.jobs.client
    names = sorted(node["metadata"]["name"] for node in (await client.list(NODES))["items"])
    job = CheckedJob("job", min=2, max=3, epochs=500, step_seconds=0.1, broken=names[-1])
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 2, "the others train", _SECONDS)
    told = stage.training(job)
    assert [one["node"] for one in told["excluded"]] == [job.broken]
    assert "failed the node check beside workers" in told["excluded"][0]["reason"]
    found = {one["node"]: one["verdict"] for one in told["check"]["nodes"]}
    assert found == dict.fromkeys(names, "proven") | {job.broken: "faulty"}
    await stage.wait_for_events("NodeExcluded", f"Node {job.broken} is left out of training")
    await stage.steps_on(job)
    assert set(stage.worlds(job)) == {2}, "no round had the broken node"


async def test_a_broken_node_is_found_without_a_job_and_nothing_is_left(
    three_nodes: Stage,
) -> None:
    stage, client = three_nodes, three_nodes.recorder.jobs.client
    names = sorted(node["metadata"]["name"] for node in (await client.list(NODES))["items"])
    variables = {
        "VOLCANO_ELASTIC_NODE_CHECK_FAULT": f"wrong:{names[1]}",
        "VOLCANO_ELASTIC_CHECK_SECONDS": "120",
    }
    # Nobody is left out because of a busy machine: all are waited for.
    patient = ["--start-timeout", "230", "--timeout", "240", "--image", "local", "--json"]
    tool = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "volcano_elastic.cli", "check-nodes", *names, *patient),
        *(f"--env={name}={value}" for name, value in variables.items()),
        env={**os.environ, "KUBECONFIG": str(stage.plane.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(tool.communicate(), 300)
    assert tool.returncode == 1, said
    found = {one["node"]: one for one in json.loads(said)["nodes"]}
    assert {name: one["verdict"] for name, one in found.items()} == {
        name: "faulty" if name == names[1] else "proven" for name in names
    }
    assert "multiplied matrices wrongly" in found[names[1]]["note"]
    assert not (await client.list(SECRETS, "default", label_selector=LABEL))["items"]
    for _ in range(240):
        if not (await client.list(PODS, "default", label_selector=LABEL))["items"]:
            return
        await asyncio.sleep(0.25)
    pytest.fail("its pods are still there after a minute")
