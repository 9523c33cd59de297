"""A person's and a program's word on a job's size and resources, by the API server alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.kubectl import Kubectl
from e2e.queue_world import QueueWorld, queue_world
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.kube.resource import SCALEPLANS

pytestmark = pytest.mark.e2e
Object = dict[str, Any]


@pytest.fixture
async def world(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[QueueWorld]:
    """Two nodes of four GPUs, and the queue `default`."""
    async with queue_world(fresh_control_plane, tmp_path) as found:
        yield found


def plan(name: str, replicas: int, scale_type: str = "manual", **spec: Any) -> Object:
    return {
        "apiVersion": SCALEPLANS.api_version,
        "kind": SCALEPLANS.kind,
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"scale-type": scale_type},
        },
        "spec": {"ownerJob": "a", "replicaResourceSpecs": {"Worker": {"replicas": replicas}}}
        | spec,
    }


async def scale(
    world: QueueWorld, name: str, replicas: int, scale_type: str = "manual", **spec: Any
) -> None:
    await world.client.create(SCALEPLANS, plan(name, replicas, scale_type, **spec))


@pytest.fixture
def kubectl(fresh_control_plane: ControlPlane, tmp_path: Path) -> Kubectl:
    return Kubectl(fresh_control_plane.kubeconfig, tmp_path)


async def phase(world: QueueWorld, name: str, wanted: str) -> Object:
    found: Object = {}

    async def holds() -> bool:
        obj = await world.client.get(SCALEPLANS, name, "default")
        found.update(obj.get("status") or {})
        return found.get("phase") == wanted

    await world.until(holds, f"ScalePlan {name} is {wanted}")
    return {one["type"]: one for one in found["conditions"]}


async def test_a_persons_plan_holds_a_job_down_and_a_programs_counts_after_it(
    world: QueueWorld, kubectl: Kubectl
) -> None:
    await world.job("a", 1, 8)
    await world.size("a", 8)
    await scale(world, "auto", 6, "auto")
    await phase(world, "auto", "Succeeded")
    await world.size("a", 6)
    resources = {"Worker": {"replicas": 3, "resource": {"cpu": "200m", "memory": "64Mi"}}}
    by_hand = plan("by-hand", 3, replicaResourceSpecs=resources)
    await kubectl("apply", "-f", "-", stdin=by_hand)
    told = await phase(world, "by-hand", "Succeeded")
    (line,) = (await kubectl("get", "splan", "by-hand", "--no-headers")).splitlines()
    assert line.split()[:5] == ["by-hand", "a", "manual", "3", "Succeeded"]
    assert told["Resources"]["message"] == "Worker pods ask for 200m CPU, 64Mi"
    await world.size("a", 3)
    beaten = await phase(world, "auto", "Superseded")
    assert "by-hand" in beaten["Accepted"]["message"]
    elastic = await world.elastic("a")
    assert elastic["resources"]["Worker"]["cpu"] == "200m"
    by_name = {"createPods": [{"name": "a-worker-4"}], "replicaResourceSpecs": {}}
    await scale(world, "made-by-name", 0, **by_name)
    await phase(world, "made-by-name", "Succeeded")
    assert {life.name for life in world.there("a")} == {f"a-worker-{i}" for i in range(5)}
    await world.client.delete(SCALEPLANS, "made-by-name", "default")
    await world.size("a", 3)
    change = {"spec": {"expireSeconds": 0}}
    await world.client.patch(SCALEPLANS, "by-hand", "default", change)
    await phase(world, "by-hand", "Expired")
    await phase(world, "auto", "Succeeded")
    await world.size("a", 6)
    await world.client.delete(SCALEPLANS, "auto", "default")
    await world.size("a", 8)


async def test_pods_that_a_plan_names_leave_or_are_made_anew(world: QueueWorld) -> None:
    await world.job("a", 1, 8)
    await world.size("a", 8)
    by_name = {life.name: uid for uid, life in world.lives.items()}
    named = {"migratePods": [{"name": "a-worker-5"}], "removePods": [{"name": "a-worker-3"}]}
    await scale(world, "named", 6, **named)
    await phase(world, "named", "Succeeded")
    await world.size("a", 6)
    told = {name for name, uid in by_name.items() if world.lives[uid].told}
    assert told == {"a-worker-3", "a-worker-5", "a-worker-7"}, "named ones are the first to leave"
    assert len(world.there("a")) == 6


async def test_a_plan_for_more_than_there_is_room_for_says_so(world: QueueWorld) -> None:
    await world.job("b", 4, 4)
    await world.size("b", 4)
    await world.job("a", 1, 8)
    await world.size("a", 4)
    await scale(world, "more", 8)
    told = await phase(world, "more", "Pending")
    assert told["Accepted"]["status"] == "True"
    assert "4 of 8 pods" in told["Replicas"]["message"]
