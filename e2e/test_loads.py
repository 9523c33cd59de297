"""Loads of containers, and sizes of checkpoints, go from the trainer to the job's status, and on to
Brain's history; nothing serves the metrics API here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.brain.test_program import brain
from volcano_elastic.api import checkpoint_size
from volcano_elastic.brain.history.database import History
from volcano_elastic.database.database import DatabaseError
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import PYTORCHJOBS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
MIB = 1 << 20


class Job(DemoJob):
    """Its containers are told of a control group of their own, as real ones have."""

    def manifest(self, out: Path) -> dict[str, Any]:
        body = DemoJob.manifest(self, out)
        roles = body["spec"]["pytorchReplicaSpecs"]
        (container,) = roles["Worker"]["template"]["spec"]["containers"]
        container["env"] = [
            {"name": "VOLCANO_ELASTIC_CONTROL_GROUP", "value": str(out / "group")},
            {"name": "VOLCANO_ELASTIC_STRAGGLER_SECONDS", "value": "1"},
        ]
        return body


def control_group(folder: Path) -> None:
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\n")
    (folder / "memory.current").write_text(f"{300 * MIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file {40 * MIB}\n")


@pytest.fixture
async def one_node(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    async with running(fresh_control_plane, tmp_path, nodes=1, gpus_per_node=1) as stage:
        yield stage


async def test_loads_come_from_the_trainer_and_a_steps_split_too(
    one_node: Stage, tmp_path: Path
) -> None:
    stage, url = one_node, f"sqlite:///{tmp_path / 'history.db'}"
    control_group(stage.out / "group")
    job = Job("loaded", 1, 1, epochs=1000, step_seconds=0.05)
    client = stage.recorder.jobs.client
    async with brain(stage.plane.kubeconfig, url, tmp_path / "brain.log"):
        await stage.submit(job)

        async def told() -> bool:
            found = await client.get(PYTORCHJOBS, job.name, "default")
            loads = ((found.get("status") or {}).get("elastic") or {}).get("loads") or {}
            known: bool = loads.get("pods") == {"loaded-worker-0": {"cpu": "0", "memory": "260Mi"}}
            return known and checkpoint_size.reported(found["status"]).get("Worker")

        await stage.until_asked(told, "its status has its container's load, and its commit's size")

        async def recorded() -> bool:
            history = History(url)
            try:
                runs = history.runs()
            except DatabaseError:
                return False
            finally:
                history.close()
            loads = [str(load.peak.memory) for run in runs for load in run.loads]
            return loads == ["260Mi"] and all("Worker" in run.checkpoint for run in runs)

        await stage.until_asked(recorded, "Brain has it in its history")
    found = json.loads(await tune(stage, job.name))
    assert found["batchSeconds"]["compute"] > 0 and found["batchSamples"] > 0


async def tune(stage: Stage, name: str) -> str:
    program = (sys.executable, "-m", "volcano_elastic.cli", "tune", name, "--json")
    process = await asyncio.create_subprocess_exec(
        *program,
        env={**os.environ, "KUBECONFIG": str(stage.plane.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return out.decode()
