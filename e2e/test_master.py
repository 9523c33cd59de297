"""A job with a Master, as Kubeflow's examples are: Workers wait for its name, then talk to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import PATIENCE, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
MASTER = """\
import os, socket
with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as server:
    ranks = {server.accept()[0].recv(9).decode() for _ in range(int(os.environ["WORLD_SIZE"]) - 1)}
assert ranks == {"1", "2"}, ranks
"""
WORKER = """\
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
for _ in range(300):
    try:
        with socket.create_connection(address) as master:
            master.sendall(os.environ["RANK"].encode())
        break
    except OSError:
        time.sleep(0.1)
else:
    raise SystemExit(f"no Master at {address}")
"""


def _replica(replicas: int, program: str) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "train:1", "command": ["python", "-c", program]}
    return {"replicas": replicas, "template": {"spec": {"containers": [container]}}}


async def test_workers_wait_for_the_master_and_reach_it_by_its_name(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "pytorchReplicaSpecs": {"Master": _replica(1, MASTER), "Worker": _replica(2, WORKER)},
            "runPolicy": {"cleanPodPolicy": "None"},
        },
    }
    async with running(fresh_control_plane, tmp_path) as stage:
        client = stage.recorder.jobs.client
        await client.create(PYTORCHJOBS, job)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        ended: set[str] = set()
        while not ended & {"Succeeded", "Failed"}:
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"not within {PATIENCE:.0f} s: the job ends\n{stage.story()}")
            await asyncio.sleep(0.1)
            status = (await client.get(PYTORCHJOBS, "a", "default")).get("status") or {}
            conditions = status.get("conditions") or ()
            ended = {c["type"] for c in conditions if c["status"] == "True"}
        assert "Succeeded" in ended, stage.story()
        for pod in (await client.list(PODS, "default"))["items"]:
            waits = pod["status"].get("initContainerStatuses") or []
            named = [(s["name"], s["state"]["terminated"]["exitCode"]) for s in waits]
            is_worker = "worker" in pod["metadata"]["name"]
            assert named == ([("init-pytorch", 0)] if is_worker else [])
