"""Nodes that are cut off while their pods live: no healthy pod goes, and no two commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.node_faults import WATCHED, FaultyCluster, submitted
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.api.pod import condition
from volcano_elastic.demo.training import DemoJob

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
_OPERATORS_LOOKS = 3.0
"""Seconds in which it looks at a node in trouble more than once."""


@pytest.fixture
async def three_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each."""
    async with running(
        fresh_control_plane, tmp_path, nodes=3, gpus_per_node=1, kubelet_arguments=WATCHED
    ) as stage:
        yield stage


async def test_pods_behind_a_partition_stay_while_they_are_heard_and_are_fenced_when_not(
    three_nodes: Stage,
) -> None:
    stage = three_nodes
    async with submitted(stage, DemoJob("job", min=1, max=2, epochs=6, step_seconds=0.3)) as it:
        await it.train_together(2)
        await cut_off_from_kubernetes_only(it)
        for index in (1, 0):
            await cut_off_from_all(it, index)
        await it.judge_finished()


async def cut_off_from_kubernetes_only(it: FaultyCluster) -> None:
    """The coordinator hears all of its pods, and answers: one witness alone."""
    pods = [await it.pod(index) for index in (0, 1)]
    nodes, runs = [str(pod["spec"]["nodeName"]) for pod in pods], len(it.starts())
    await it.fault("partitioned", *nodes)

    def ready() -> int:
        found = [it.stage.recorder.nodes.get(node) or {} for node in nodes]
        return sum((condition(node, "Ready") or {}).get("status") == "True" for node in found)

    await it.stage.until(lambda: not ready(), "the nodes are not Ready")
    await asyncio.sleep(_OPERATORS_LOOKS)
    await it.train_together(2)
    for pod in pods:
        await it.assert_same(pod)
    await it.fault(None, *nodes)
    await it.stage.until(lambda: ready() == 2, "the nodes are Ready again")
    for pod in pods:
        await it.assert_same(pod)
    assert len(it.starts()) == runs, "nobody began anew"


async def cut_off_from_all(it: FaultyCluster, index: int) -> None:
    """The pod is silent, another comes in its place; then it is heard again, and at last its node
    is back."""
    pod = await it.pod(index)
    node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
    await it.fault("frozen", node)
    await it.made_anew({uid})
    await it.train_together(2)
    runs = len(it.starts())
    await it.fault("partitioned", node)
    await asyncio.sleep(_OPERATORS_LOOKS)
    await it.train_together(2)
    # An old coordinator may try to go on alone, as far as storage lets only one of both commit.
    assert index == 0 or len(it.starts()) == runs, "the old pod has disturbed the new one's round"
    await it.fault(None, node)
    await it.train_together(2)
    assert (await it.pod(index))["metadata"]["uid"] != uid
