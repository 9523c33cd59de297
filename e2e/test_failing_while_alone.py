"""Nodes that fail while the API server is away, or again and again: training goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.node_faults import WATCHED, FaultyCluster, submitted
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane, EmbeddedControlPlane
from embedded_cluster.conformance.real_control_plane import RealControlPlane
from volcano_elastic.demo.training import DemoJob

pytestmark = pytest.mark.e2e


@pytest.fixture
def lasting_control_plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One whose API server may be away for a while, and keeps its objects."""
    name = request.config.getoption("--control-plane")
    if name == "kubeconfig":
        pytest.skip("that cluster's API server is not ours to stop")
    objects = tmp_path_factory.mktemp("objects")
    plane = RealControlPlane() if name == "real" else EmbeddedControlPlane(data_dir=objects)
    with plane:
        yield plane


@pytest.fixture
async def three_nodes(lasting_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each."""
    async with running(
        lasting_control_plane, tmp_path, nodes=3, gpus_per_node=1, kubelet_arguments=WATCHED
    ) as stage:
        yield stage


async def test_a_node_that_dies_without_api_server_is_replaced_later_and_one_that_flaps_stays_away(
    three_nodes: Stage, pytestconfig: pytest.Config
) -> None:
    stage, long = three_nodes, pytestconfig.getoption("--long")
    job = DemoJob("job", min=1, max=2, epochs=28 if long else 6, step_seconds=0.3)
    async with submitted(stage, job) as it:
        await it.train_together(2)
        await node_dies_while_the_api_server_is_away(it, 120 if long else 12)
        await node_flaps(it, *((10, 5, 20) if long else (3, 1, 2)))
        await it.judge_finished()


async def node_dies_while_the_api_server_is_away(it: FaultyCluster, seconds: float) -> None:
    """The other worker trains on meanwhile, and the lost one is made anew afterwards."""
    lost, other = await it.pod(1), await it.pod(0)
    node = lost["spec"]["nodeName"]
    log, plane = it.stage.cluster.logs / "kubelet.log", it.stage.plane
    await it.fault("down/2", node)
    await it.stage.until(lambda: f"{node} will be down" in log.read_text(), "the kubelet knows")
    plane.stop_api_server()
    print(f"the API server is away for {seconds} s")
    await asyncio.sleep(seconds / 2)
    await it.stage.until(lambda: it.stage.world(it.job) == 1, "the other trains on")
    await it.trains_unheard()
    await asyncio.sleep(seconds / 2)
    plane.start_api_server()
    await it.made_anew({lost["metadata"]["uid"]})
    await it.train_together(2)
    assert await it.node(1) != node
    await it.assert_same(other)
    await it.fault(None, node)


async def node_flaps(it: FaultyCluster, times: int, down: float, up: float) -> None:
    """It takes a worker with it, which is back or elsewhere; the others train on."""
    node, other = await it.node(1), await it.pod(0)
    for _ in range(times):
        await it.fault("down", node)
        await asyncio.sleep(down)
        await it.trains_unheard()
        await it.fault(None, node)
        await asyncio.sleep(up)
    await it.train_together(2)
    await it.assert_same(other)
