"""Nodes that die under running jobs: training goes on elsewhere, and nobody healthy pays for it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.conftest import Promised
from e2e.node_faults import FaultyCluster, submitted
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.kubelet.fault import ANNOTATION
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import NODES, PODS

pytestmark = pytest.mark.e2e
TAKEOVER_SECONDS = 4.0
"""Twice those of silence, in which another host is elected."""
BACK_SECONDS = 30.0
"""Twice those from a pod's loss, as node and coordinator tell, to the next step of all, where there
is room."""
_WATCHED = ("--node-monitor-grace-period", "4")
_IMPATIENT = (*_WATCHED, "--restart-back-off", "1")


@pytest.fixture
async def three_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each."""
    async with running(
        fresh_control_plane, tmp_path, nodes=3, gpus_per_node=1, kubelet_arguments=_WATCHED
    ) as stage:
        yield stage


@pytest.fixture
async def two_nodes(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two nodes of one GPU each."""
    async with running(
        fresh_control_plane, tmp_path, nodes=2, gpus_per_node=1, kubelet_arguments=_IMPATIENT
    ) as stage:
        yield stage


async def _set(stage: Stage, node: str, fault: str | None) -> None:
    body = {"metadata": {"annotations": {ANNOTATION: fault}}}
    await stage.recorder.jobs.client.patch(NODES, node, None, body)


async def test_pods_of_dead_nodes_are_made_anew_where_there_is_room(
    three_nodes: Stage, promised: Promised
) -> None:
    stage = three_nodes
    job = DemoJob("job", min=2, max=2, epochs=9, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 2, "job trains")
    for index in (1, 0):
        await stage.steps_on(job)
        node = await made_anew(stage, job, index, promised)
        await _set(stage, node, None)
    await stage.judge_finished(job)


async def made_anew(stage: Stage, job: DemoJob, index: int, promised: Promised) -> str:
    """Let the node of this pod die, which is made anew elsewhere, alone; return the node."""
    client = stage.recorder.jobs.client
    pods = {i: await client.get(PODS, f"job-worker-{i}", "default") for i in (0, 1)}
    node = str(pods[index]["spec"]["nodeName"])
    known = set(stage.recorder.timeline.pods)
    died = stage.recorder.now()
    await _set(stage, node, "down")
    await stage.until(
        lambda: any(
            pod.index == index and uid not in known
            for uid, pod in stage.recorder.timeline.pods.items()
        ),
        "the lost pod is made anew",
    )
    anew_at = stage.recorder.now()
    print(f"made anew after {anew_at - died:.1f} s")
    await stage.until(lambda: stage.worlds(job)[-1:] == [2] and stage.world(job) == 2, "both train")
    await stage.steps_on(job)
    print(f"both train after {stage.recorder.now() - died:.1f} s")
    promised("all train, once it is made anew", stage.recorder.now() - anew_at, BACK_SECONDS)
    other = await client.get(PODS, f"job-worker-{1 - index}", "default")
    assert other["metadata"]["uid"] == pods[1 - index]["metadata"]["uid"], "a healthy pod stays"
    anew = await client.get(PODS, f"job-worker-{index}", "default")
    assert anew["spec"]["nodeName"] != node
    await stage.wait_for_events("NodeLost", node)
    return node


async def test_survivors_elect_another_host_before_worker_0_is_back(
    three_nodes: Stage, promised: Promised
) -> None:
    stage, job = three_nodes, DemoJob("job", min=1, max=3, epochs=8, step_seconds=0.2)
    async with submitted(stage, job) as it:
        await it.train_together(3)
        pods = {index: await it.pod(index) for index in range(3)}
        node, round_before = await it.node(0), stage.training(job)["round"]
        died = time.time()
        await it.fault("down", node)
        await stage.until(
            lambda: stage.world(job) == 2 and stage.training(job)["round"] > round_before,
            "survivors train",
        )
        told = stage.training(job)
        assert told["host"] in (1, 2) and told["ranks"] == {"1": 0, "2": 1}
        await stage.steps_on(job)
        rounds = {one["round"]: one for one in stage.training(job)["rounds"]}
        seconds = rounds[told["round"]]["first_step_time"] - died
        promised("survivors' next step, without worker 0's node", seconds, TAKEOVER_SECONDS)
        at_0 = [pod for pod in stage.recorder.timeline.pods.values() if pod.index == 0]
        assert sum(pod.running is not None for pod in at_0) == 1, "worker 0 was back before"
        await it.fault(None, node)
        await it.train_together(3)
        for index in (1, 2):
            await it.assert_same(pods[index])
        await it.judge_finished()


async def test_a_survivor_of_two_trains_on_once_the_coordinators_host_is_given_up(
    three_nodes: Stage,
) -> None:
    """Nothing answers there: the host might train on, until the operator gives it up. Then the
    survivor elects itself, or the new worker 0, if it begins before, counts the old one out."""
    stage, job = three_nodes, DemoJob("job", min=1, max=2, epochs=12, step_seconds=0.2)
    async with submitted(stage, job) as it:
        await it.train_together(2)
        for _ in range(2):
            before, host = (stage.training(job)[key] for key in ("round", "host"))
            survivor, known = await it.pod(1 - host), set(stage.recorder.timeline.pods)
            node = await it.node(host)
            await it.fault("frozen", node)
            await stage.until(
                lambda before=before: stage.training(job)["round"] > before and stage.world(job),
                "training goes on",
            )
            assert stage.recorder.timeline.pods.keys() > known, "the host was not given up yet"
            await it.train_together(2)
            await it.assert_same(survivor)
            await it.fault(None, node)
        await it.judge_finished()


async def test_worker_0_without_room_waits_and_comes_first_only_if_nobody_else_can_host(
    two_nodes: Stage,
) -> None:
    stage, job = two_nodes, DemoJob("job", min=1, max=2, epochs=23, step_seconds=0.2)
    async with submitted(stage, job) as it:
        await it.train_together(2)
        await survivor_goes_on(it)
        await survivor_begins_anew(it)
        await it.judge_finished()


async def survivor_goes_on(it: FaultyCluster) -> None:
    """Worker 0, which hosts the coordinator, waits for room until its node is back."""
    survivor, node = await it.pod(1), await it.node(0)
    await it.fault("frozen", node)
    await it.stage.until(
        lambda: it.stage.world(it.job) == 1 and it.stage.training(it.job)["host"] == 1,
        "the survivor trains alone",
    )
    await it.stage.steps_on(it.job)
    await it.fault(None, node)
    await it.train_together(2)
    await it.assert_same(survivor)
    assert it.stage.training(it.job)["host"] == 1 and await it.node(0) == node


async def survivor_begins_anew(it: FaultyCluster) -> None:
    """It has no vote then, and makes room for worker 0: the job goes on from its last commit."""
    survivor, node, lost = await it.pod(1), await it.node(0), await it.pod(0)
    await it.fault("down", node)
    await it.stage.until(lambda: it.stage.world(it.job) == 1, "the survivor trains alone")
    pods = it.stage.recorder.timeline.pods
    await it.stage.until(
        lambda: pods[lost["metadata"]["uid"]].ended is not None, "worker 0 is given up"
    )
    await it.stage.steps_on(it.job)
    await it.assert_same(survivor)
    it.hit.add(await it.node(1))
    runs = len(it.starts())
    client = it.stage.recorder.jobs.client
    body = {"metadata": {"annotations": {ANNOTATION: "kill"}}}
    await client.patch(PODS, survivor["metadata"]["name"], "default", body)
    await it.stage.until(lambda: len(it.starts()) > runs, "the job trains again")
    await it.train_together(1)
    assert it.stage.training(it.job)["host"] == 0 and await it.node(0) != node
    await it.fault(None, node)
    await it.train_together(2)


async def test_without_room_a_job_goes_on_smaller_and_grows_back(three_nodes: Stage) -> None:
    stage, client = three_nodes, three_nodes.recorder.jobs.client
    job = DemoJob("job", min=1, max=3, epochs=9, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 3, "job grows to all nodes")
    node = (await client.get(PODS, "job-worker-2", "default"))["spec"]["nodeName"]
    healthy = {i: await client.get(PODS, f"job-worker-{i}", "default") for i in (0, 1)}
    await _set(stage, node, "down")
    await stage.until(lambda: stage.world(job) == 2, "job goes on with two")
    await stage.until(
        lambda: (
            sum(pod.index == 2 for pod in stage.recorder.timeline.pods.values()) > 1
            or stage.changes[-1].new == 2
        ),
        "the lost pod's object goes",
    )
    await stage.steps_on(job)
    await _set(stage, node, None)
    await stage.until(lambda: stage.world(job) == 3, "job grows back")
    for index, before in healthy.items():
        pod = await client.get(PODS, f"job-worker-{index}", "default")
        assert pod["metadata"]["uid"] == before["metadata"]["uid"], "a healthy pod stays"
    await stage.judge_finished(job)
