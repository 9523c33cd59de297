"""Brain beside a whole cluster: jobs are made with what jobs like them used, and nobody waits for a
Brain that isn't there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.brain.runs import amounts, load, run
from tests.brain.test_program import brain
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION, USER_ANNOTATION
from volcano_elastic.brain.history.database import History
from volcano_elastic.kube.resource import EVENTS, PODS, PYTORCHJOBS, QUEUEPOLICIES

pytestmark = pytest.mark.e2e
PROGRAM = """\
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
ASKED = {"cpu": "1500m", "memory": "1Gi"}
# p95 of 4 runs with 0.5 CPU and 256 MiB, in the history's buckets, and 15 %.
FEWEST, MOST = 500, 700
NEEDED_MEMORY = "295Mi"


def _job(name: str, go: Path, **annotations: str) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "command": ["python", "-c", PROGRAM, str(go)],
        "resources": {"requests": ASKED, "limits": {"memory": "1Gi"}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {USER_ANNOTATION: "ann", **annotations},
        },
        "spec": {
            "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}},
            "runPolicy": {"cleanPodPolicy": "None"},
        },
    }


async def _until_it_advises(stage: Stage, go: Path) -> None:
    """Brain takes seconds to start, which no job waits for."""
    client = stage.recorder.jobs.client
    job = _job("first", go, **{BRAIN_ANNOTATION: "Recommend"})
    job["spec"]["runPolicy"]["suspend"] = True
    await client.create(PYTORCHJOBS, job)
    deadline = stage.recorder.now() + 90
    while True:
        events = (await client.list(EVENTS, "default"))["items"]
        if any(event["reason"] == "ResourcesRecommended" for event in events):
            break
        if stage.recorder.now() > deadline:
            pytest.fail(f"Brain advises nobody\n{stage.story()}")
        await asyncio.sleep(0.05)
    found = await client.get(PYTORCHJOBS, "first", "default")
    assert "recommendation" not in (found["status"].get("elastic") or {}), "it is told, no more"


async def _pods(stage: Stage, name: str) -> list[dict[str, Any]]:
    """What its two pods ask for, once both run."""
    client, found = stage.recorder.jobs.client, list[dict[str, Any]]()

    async def both() -> bool:
        pods = (await client.list(PODS, "default"))["items"]
        mine = [p for p in pods if p["metadata"]["name"].startswith(f"{name}-worker-")]
        found[:] = [p["spec"]["containers"][0]["resources"] for p in mine]
        return len(mine) == 2 and all(p["status"].get("phase") == "Running" for p in mine)

    deadline = stage.recorder.now() + 90
    while not await both():
        if stage.recorder.now() > deadline:
            pytest.fail(f"{name}'s pods do not run\n{stage.story()}")
        await asyncio.sleep(0.05)
    return found


async def test_jobs_are_made_with_what_jobs_like_them_used(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    url, go = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "go"
    history = History(url)
    history.migrate()
    for i in range(4):
        used = load(0, amounts(0.5, 0.25))
        history.write(run(f"u{i}", image="train:1", queue="default", loads=(used,)))
    history.close()
    async with running(fresh_control_plane, tmp_path) as stage:
        client = stage.recorder.jobs.client
        kubeconfig = fresh_control_plane.kubeconfig
        async with brain(kubeconfig, url, tmp_path / "brain.log"):
            await _until_it_advises(stage, go)
            await client.create(PYTORCHJOBS, _job("own", go, **{BRAIN_ANNOTATION: "AtStart"}))
            first, second = await _pods(stage, "own")
            assert first == second
            requests = first["requests"]
            assert requests["memory"] == first["limits"]["memory"] == NEEDED_MEMORY
            assert FEWEST <= int(requests["cpu"].removesuffix("m")) <= MOST
            job = await client.get(PYTORCHJOBS, "own", "default")
            told = job["status"]["elastic"]["resources"]["Worker"]
            assert told | {"message": ""} == {**requests, "message": ""}
            why = "p95 of 4 runs by this user with this image, and 15 %"
            assert told["message"] == why
            events = (await client.list(EVENTS, "default"))["items"]
            (said,) = [e["message"] for e in events if e["reason"] == "ResourcesApplied"]
            assert said.endswith(f"instead of 1500m CPU, 1Gi: {why}")

            policy = {
                "apiVersion": QUEUEPOLICIES.api_version,
                "kind": "QueuePolicy",
                "metadata": {"name": "default"},
                "spec": {"queue": "default", "brain": {"mode": "AtStart"}},
            }
            await client.create(QUEUEPOLICIES, policy)
            await client.create(PYTORCHJOBS, _job("queues", go))
            assert await _pods(stage, "queues") == [first, first]
            await client.create(PYTORCHJOBS, _job("not", go, **{BRAIN_ANNOTATION: "Off"}))
            (pod, _) = await _pods(stage, "not")
            assert pod["requests"] == ASKED
        await client.create(PYTORCHJOBS, _job("alone", go))
        (pod, _) = await _pods(stage, "alone")
        assert pod["requests"] == ASKED, "without Brain it begins as it asks"
        go.touch()
        finished = stage.recorder.timeline.finished
        await stage.until(lambda: len(finished) == 4, "all jobs end")
        assert {end[1] for end in finished.values()} == {"Succeeded"}, stage.story()
