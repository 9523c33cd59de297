"""Whole jobs that lose their nodes, or the API server beside one, or a node again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.node_faults import WATCHED, FaultyCluster, submitted
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import NODES

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]


@dataclass(frozen=True, slots=True)
class DedicatedJob(DemoJob):
    """Its coordinator has a pod of its own."""

    def manifest(self, out: Path) -> dict[str, Any]:
        body = DemoJob.manifest(self, out)
        body["spec"]["elasticPolicy"]["coordinator"] = "dedicated"
        return body


@pytest.fixture
async def four_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Four nodes of one GPU each."""
    async with running(
        fresh_control_plane, tmp_path, nodes=4, gpus_per_node=1, kubelet_arguments=WATCHED
    ) as stage:
        yield stage


async def test_jobs_outlive_all_of_their_nodes_and_their_coordinators(
    four_nodes: Stage, pytestconfig: pytest.Config
) -> None:
    stage = four_nodes
    async with submitted(stage, DemoJob("job", min=2, max=2, epochs=6, step_seconds=0.3)) as it:
        await it.train_together(2)
        if pytestconfig.getoption("--long"):
            await both_nodes_lost(it, for_good=False)
        await both_nodes_lost(it, for_good=True)
        await it.judge_finished()
    await it.fault(None, *it.hit)
    dedicated = DedicatedJob("dedicated", min=2, max=2, epochs=6, step_seconds=0.3)
    await coordinators_node_lost(stage, dedicated)


async def both_nodes_lost(it: FaultyCluster, *, for_good: bool) -> None:
    """They are back within a moment, or the job goes on elsewhere: from its last commit."""
    await it.stage.until(lambda: it.commits, "there is a commit")
    newest = max(step for _, step in it.commits)
    uids = {(await it.pod(index))["metadata"]["uid"] for index in (0, 1)}
    nodes = [await it.node(index) for index in (0, 1)]
    runs = len(it.starts())
    await it.fault("down", *nodes)
    if for_good:
        await it.made_anew(uids)
    else:
        await asyncio.sleep(1)
        await it.fault(None, *nodes)
    await it.stage.until(lambda: len(it.starts()) > runs, "both train again")
    await it.train_together(2)
    assert it.starts()[runs] >= newest, "it goes on from its last commit"
    assert set(nodes).isdisjoint([await it.node(i) for i in (0, 1)]) == for_good


async def coordinators_node_lost(stage: Stage, job: DedicatedJob) -> None:
    """Workers train on, and another coordinator comes."""
    nodes = [str(node["metadata"]["name"]) for node in stage.recorder.nodes]
    await _only_on(stage, {nodes[-1]})
    async with submitted(stage, job) as it:
        await stage.until(lambda: _bound(stage, f"{job.name}-coordinator"), "it has a node")
        await _only_on(stage, set(nodes[:-1]))
        await it.train_together(2)
        workers = [await it.pod(index) for index in (0, 1)]
        runs = len(it.starts())
        before = await it.pod("coordinator")
        assert before["spec"]["nodeName"] == nodes[-1]
        await it.fault("down", nodes[-1])
        await it.trains_unheard()
        await it.train_together(2)
        after = await it.pod("coordinator")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["nodeName"] != nodes[-1]
        assert len(it.starts()) == runs, "workers train on"
        for worker in workers:
            await it.assert_same(worker)
        await stage.wait_for_events("CoordinatorLost")
        await it.judge_finished()


async def _only_on(stage: Stage, nodes: set[str]) -> None:
    """Have new pods come to these nodes only. The others are closed before any of these opens: a
    gang that waits would take one of both."""
    names = [str(node["metadata"]["name"]) for node in stage.recorder.nodes]
    for name in sorted(names, key=lambda name: name in nodes):
        body = {"spec": {"unschedulable": name not in nodes or None}}
        await stage.recorder.jobs.client.patch(NODES, name, None, body)


def _bound(stage: Stage, pod: str) -> bool:
    found = stage.recorder.pods.get(f"default/{pod}")
    return found is not None and bool(found["spec"].get("nodeName"))
