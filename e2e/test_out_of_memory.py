"""A process that needs more memory than its pod's limit gets it, step by step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e import real_groups
from e2e.stage import PATIENCE, Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
# Holds 200 MiB until it is told to go.
PROGRAM = """\
import pathlib, sys, time
held = bytearray(b"x") * (200 * 2**20)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
FIRST, ENOUGH = "64Mi", "256Mi"


def _job(go: Path) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "command": ["python", "-c", PROGRAM, str(go)],
        "resources": {"limits": {"memory": FIRST}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "hungry", "namespace": "default"},
        "spec": {
            "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}},
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 1},
        },
    }


async def _until_it_has(stage: Stage, amount: str) -> None:
    client, wanted = stage.recorder.jobs.client, {"memory": amount}
    deadline = stage.recorder.now() + PATIENCE
    while True:
        pods = (await client.list(PODS, "default"))["items"]
        asked = [pod["spec"]["containers"][0]["resources"].get("requests") for pod in pods]
        if asked == [wanted]:
            return
        if stage.recorder.now() > deadline:
            pytest.fail(f"not within {PATIENCE:.0f} s: its pod asks for {amount}\n{stage.story()}")
        await asyncio.sleep(0.05)


async def test_a_process_gets_as_much_memory_as_it_needs_and_finishes(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with running(fresh_control_plane, tmp_path) as stage:
        client = stage.recorder.jobs.client
        await client.create(PYTORCHJOBS, _job(go))
        await _until_it_has(stage, ENOUGH)
        go.touch()

        def finished() -> str | None:
            return stage.recorder.timeline.finished.get("hungry", (0, None))[1]

        await stage.until(finished, "the job ends")
        assert finished() == "Succeeded", stage.story()
        pod = await client.get(PODS, "hungry-worker-0", "default")
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources == {"requests": {"memory": ENOUGH}, "limits": {"memory": ENOUGH}}
        job = await client.get(PYTORCHJOBS, "hungry", "default")
        assert job["status"]["elastic"]["memory"] == {"hungry-worker-0": ENOUGH}
        assert not job["status"]["elastic"].get("restarts"), "it cost no restart"
        anew = "ran out of 128Mi of memory, made anew with 256Mi"
        await stage.wait_for_events("OutOfMemory", anew)


RANK = """\
import pathlib, sys, time
from elastic_trainer import ElasticDataset, ElasticLoop
import torch

net = torch.nn.Linear(1, 1)
data = ElasticDataset(torch.utils.data.TensorDataset(torch.ones(64, 1)), batch_size=1, epochs=9**9)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loop = ElasticLoop(sys.argv[1], model=net, optimizer=optimizer, data=data)
held = []
for (x,) in loop:
    with loop.step():
        loop.model(x).sum().backward()
    if data.steps > 3 and not pathlib.Path(sys.argv[2]).exists():
        held.append(bytearray(b"x") * (256 * 2**20))
    time.sleep(0.05)
"""
ROOM = 2000 * 2**20
"""Bytes: so many that a rank that has filled them is the largest process in them, which the kernel
kills."""


@pytest.mark.usefixtures("control_groups")
async def test_a_pod_whose_rank_the_kernel_killed_gets_more_while_its_agent_goes_on(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    go, script = tmp_path / "go", tmp_path / "rank.py"
    script.write_text(RANK)
    job = DemoJob("hungry", 1, 1, epochs=0, step_seconds=0).manifest(tmp_path)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    container["command"] = [
        *real_groups.entered(ROOM),
        *("python", "-m", "torch.distributed.run", str(script), str(tmp_path / "c"), str(go)),
    ]
    # As many bytes as its control group has; the kubelet here looks at requests alone.
    container["resources"] = {"requests": {"memory": "2000Mi"}}
    async with running(fresh_control_plane, tmp_path, nodes=1) as stage:
        client = stage.recorder.jobs.client
        await client.create(PYTORCHJOBS, job)
        await _until_it_has(stage, "4000Mi")
        go.touch()
        found = await client.get(PYTORCHJOBS, "hungry", "default")
        assert found["status"]["elastic"]["memory"] == {"hungry-worker-0": "4000Mi"}
        assert not found["status"]["elastic"].get("restarts"), "it cost no restart"
        anew = "ran out of 2000Mi of memory, made anew with 4000Mi"
        await stage.wait_for_events("OutOfMemory", anew)
        # Another may follow, of ranks that were killed as the pod left.
        await stage.wait_for_events("WorkersFailed", "the kernel killed it")
        await client.delete(PYTORCHJOBS, "hungry", "default")

        async def gone() -> bool:
            return not (await client.list(PODS, "default"))["items"]

        await stage.until_asked(gone, "its pods end")
