"""Nodes that monitors or clouds mark: training leaves them in order, and goes on elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import NODES, PODS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
SPOT = {"key": "aws-node-termination-handler/spot-itn", "value": "soon", "effect": "NoSchedule"}


@pytest.fixture
async def three_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each."""
    async with running(fresh_control_plane, tmp_path, nodes=3, gpus_per_node=1) as stage:
        yield stage


async def taint(stage: Stage, node: str, *taints: dict[str, Any]) -> None:
    body = {"spec": {"taints": list(taints) or None}}
    await stage.recorder.jobs.client.patch(NODES, node, None, body)


async def pod(stage: Stage, index: int) -> dict[str, Any]:
    found: dict[str, Any] = await stage.recorder.jobs.client.get(
        PODS, f"job-worker-{index}", "default"
    )
    return found


async def pods_that_stay(stage: Stage) -> list[dict[str, Any]]:
    """Return those that nobody has told to leave, lowest index first."""
    found = (await stage.recorder.jobs.client.list(PODS, "default"))["items"]
    stay = [p for p in found if not p["metadata"].get("deletionTimestamp")]
    return sorted(stay, key=lambda p: str(p["metadata"]["name"]))


async def test_pods_of_the_minimum_move_before_their_nodes_are_drained(
    three_nodes: Stage,
) -> None:
    stage = three_nodes
    job = DemoJob("job", min=2, max=2, epochs=9, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 2, "job trains")
    for which in (-1, 0):  # and the coordinator with it
        await stage.steps_on(job)
        node = await moves(stage, job, which)
        await taint(stage, node)
    await stage.judge_finished(job)


async def moves(stage: Stage, job: DemoJob, which: int) -> str:
    """Mark the node of this of the pods, which is made anew elsewhere, alone; return the node."""
    client = stage.recorder.jobs.client
    before = await pods_that_stay(stage)
    node = str(before[which]["spec"]["nodeName"])
    told = stage.recorder.now()
    pods = stage.recorder.timeline.pods
    uids = set(pods)
    await taint(stage, node, SPOT)
    await stage.until(lambda: pods.keys() - uids, "another pod comes")
    print(f"another pod after {stage.recorder.now() - told:.1f} s")
    gone, come = before[which]["metadata"]["uid"], (pods.keys() - uids).pop()
    await stage.until(
        lambda: pods[gone].ended is not None and pods[come].running is not None, "it runs"
    )
    # A coordinator that came with worker 0 knows of the rounds since.
    await stage.until(lambda: stage.world(job) == 2, "both train")
    await stage.steps_on(job)
    print(f"both train after {stage.recorder.now() - told:.1f} s")
    live = await pods_that_stay(stage)
    assert len(live) == 2 and all(p["spec"]["nodeName"] != node for p in live)
    uids_now = {p["metadata"]["uid"] for p in live}
    assert {p["metadata"]["uid"] for p in before} - uids_now == {gone}, "a healthy pod stays"
    (said,) = await stage.wait_for_events("LeftNode", f"node {node} is")
    assert "tainted aws-node-termination-handler/spot-itn" in said
    assert not stage.changes or stage.changes[-1].new == 2, "the size stays"
    assert (await client.get(NODES, node, None))["spec"].get("unschedulable") is None
    return node


async def test_surplus_without_room_elsewhere_leaves_and_comes_back(three_nodes: Stage) -> None:
    stage = three_nodes
    job = DemoJob("job", min=1, max=3, epochs=9, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 3, "job grows to all nodes")
    before = {i: await pod(stage, i) for i in (0, 1, 2)}
    node = before[2]["spec"]["nodeName"]
    await taint(stage, node, SPOT)
    await stage.until(lambda: stage.world(job) == 2, "job goes on with two")
    await stage.until(lambda: any(c.reason == "LeftNode" for c in stage.changes), "it says why")
    await stage.steps_on(job)
    await taint(stage, node)
    await stage.until(lambda: stage.world(job) == 3, "job grows back")
    for index in (0, 1):
        uid = before[index]["metadata"]["uid"]
        assert (await pod(stage, index))["metadata"]["uid"] == uid, "a healthy pod stays"
    await stage.judge_finished(job)
