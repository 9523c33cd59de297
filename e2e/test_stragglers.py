"""On one node training is slow: its worker is named, and goes elsewhere where that is wanted."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import NODES, PODS, QUEUEPOLICIES

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
SLOW = "node-2"


class Job(DemoJob):
    """Steps take six times as long on one node."""

    def manifest(self, out: Path) -> dict[str, Any]:
        body = DemoJob.manifest(self, out)
        container = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][
            0
        ]
        *command, _, seconds = container["command"]
        choice = (
            f'[ "$VOLCANO_ELASTIC_NODE_NAME" = {SLOW} ] && s={6 * float(seconds)} || s={seconds}'
        )
        run = f"{choice}; exec {shlex.join(command)} --step-seconds $s"
        container["command"] = ["sh", "-c", run]
        container["env"] = [{"name": "VOLCANO_ELASTIC_STRAGGLER_SECONDS", "value": "1"}]
        return body


@pytest.fixture
async def three_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each, and a queue that has stragglers replaced."""
    async with running(fresh_control_plane, tmp_path, nodes=3, gpus_per_node=1) as stage:
        policy = {
            "apiVersion": QUEUEPOLICIES.api_version,
            "kind": "QueuePolicy",
            "metadata": {"name": "default"},
            "spec": {"queue": "default", "nodes": {"stragglers": "Replace"}},
        }
        await stage.recorder.jobs.client.create(QUEUEPOLICIES, policy)
        yield stage


async def taint(stage: Stage, *taints: dict[str, Any]) -> None:
    """Keep pods off the third node, or don't."""
    body = {"spec": {"taints": list(taints) or None}}
    await stage.recorder.jobs.client.patch(NODES, "node-3", None, body)


async def test_a_worker_that_slows_its_job_down_goes_to_another_node(
    three_nodes: Stage, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("a minute more; --long runs it")
    stage, client = three_nodes, three_nodes.recorder.jobs.client
    job = Job("job", min=2, max=2, epochs=15, step_seconds=0.1)
    await taint(stage, {"key": "later", "effect": "NoSchedule"})
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 2, "job trains")
    await taint(stage)
    await stage.until(
        lambda: stage.world(job) == 2 and len(stage.worlds(job)) > 1, "it goes on elsewhere", 300
    )
    pods = (await client.list(PODS, "default"))["items"]
    assert SLOW not in {p["spec"]["nodeName"] for p in pods}
    for reason in ("StragglerFound", "NodeAvoided"):
        await stage.wait_for_events(reason, SLOW)
    await stage.judge_finished(job)
