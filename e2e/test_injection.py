"""An unmodified elastic job of Kubeflow, in a Python that has no trainer, gets it by an annotation;
where its Python doesn't suit, it trains as before.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.inject.carry import carry

from e2e.stage import Stage, running
from e2e.test_torchrun import manifest, steps, trains
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.readiness import free_port
from volcano_elastic.kube.resource import PYTORCHJOBS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
SCRIPT = Path(__file__).with_name("plain_torchrun.py")
_OURS = ("elastic", "grpc", "google", "protobuf", "xxhash", "tenacity")


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    carry(tmp_path / "carried")
    folder = ("--trainer-folder", str(tmp_path / "carried"))
    async with running(
        fresh_control_plane, tmp_path, nodes=2, gpus_per_node=1, operator_arguments=folder
    ) as found:
        if "by: plain processes" in (found.cluster.logs / "kubelet.log").read_text():
            pytest.skip("this machine allows no mount namespaces")
        yield found


def without_trainer(folder: Path, *left_out: str) -> Path:
    """Return a Python that has what this one has, but for the trainer and what it brings."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    here, there = (Path(p) / "lib" / version / "site-packages" for p in (sys.prefix, folder))
    for each in here.iterdir():
        mine = any(name in each.name for name in _OURS) or each.name.startswith(left_out or ("?",))
        if not mine and each.suffix != ".pth" and each.name != "__pycache__":
            (there / each.name).symlink_to(each)
    return folder / "bin" / "python"


def job(stage: Stage, python: Path, annotations: dict[str, str], *, workers: int) -> dict[str, Any]:
    folder = stage.out / "plain"
    folder.mkdir()
    run = f"{python} -m torch.distributed.run {SCRIPT} {folder}"
    command = ["sh", "-c", f"exec {run} >> {folder}/worker-$VOLCANO_ELASTIC_POD_INDEX.log 2>&1"]
    policy: dict[str, Any] = {"minReplicas": 1, "maxReplicas": workers, "cooldownSeconds": 0}
    policy["rdzvBackend"] = "c10d"
    found = manifest("plain", command, policy | {"rdzvPort": free_port()})
    found["metadata"]["annotations"] = annotations
    return found


async def finish(stage: Stage) -> str:
    """End the job well; return what its first worker said."""
    folder = stage.out / "plain"
    (folder / "stop").touch()
    over = stage.recorder.timeline.finished
    await stage.until(lambda: "plain" in over, "plain ends", 120)
    assert over["plain"][1] == "Succeeded", stage.story()
    numbers = [step.number for step in steps(folder)]
    assert numbers == sorted(set(numbers)), "no step is done again"
    return (folder / "worker-0.log").read_text()


ASKS = {"volcano-elastic.io/inject-trainer": "true"}


async def test_one_annotation_brings_the_trainer(stage: Stage) -> None:
    python = without_trainer(stage.out / "image")
    await stage.recorder.jobs.client.create(PYTORCHJOBS, job(stage, python, ASKS, workers=2))
    await trains(stage, stage.out / "plain", 2, "start")
    said = await finish(stage)
    assert "elastic_trainer.coordinator" in said and "running, round" in said, said


async def test_a_python_that_does_not_suit_trains_as_before(stage: Stage) -> None:
    python = without_trainer(stage.out / "image", "numpy")
    await stage.recorder.jobs.client.create(PYTORCHJOBS, job(stage, python, ASKS, workers=1))
    await trains(stage, stage.out / "plain", 1, "start")
    said = await finish(stage)
    why = "the trainer is left out, and torchrun meets by itself: expected numpy 2.0"
    assert why in said and "elastic_trainer.coordinator" not in said, said
