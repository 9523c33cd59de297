"""The demo's two jobs, and the programs that judge what they trained."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from volcano_elastic import assets
from volcano_elastic.api.role import elastic
from volcano_elastic.kube.resource import Object

SCRIPT = assets.EXAMPLES.resolve() / "digits.py"
# 80 % of scikit-learn's 1,797 digits.
SAMPLES = 1437
_JUDGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DemoJob:
    name: str
    min: int
    max: int
    epochs: int
    step_seconds: float
    """Each step is stretched to about this, so that one can watch."""

    def folder(self, out: Path) -> Path:
        return out / f"job-{self.name}"

    def manifest(self, out: Path) -> Object:
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                # By itself torchrun starts one for each CPU of the machine, in every pod.
                "nprocPerNode": "1",
                "elasticPolicy": {
                    "minReplicas": self.min,
                    "maxReplicas": self.max,
                    "rdzvBackend": "volcano-elastic",
                    "cooldownSeconds": 3,
                },
                "pytorchReplicaSpecs": {
                    elastic().name: {
                        "restartPolicy": "OnFailure",
                        "template": {
                            "spec": {
                                "terminationGracePeriodSeconds": 30,
                                "containers": [
                                    {
                                        "name": "pytorch",
                                        "image": "volcano-elastic-trainer",
                                        "command": [
                                            *("python", "-m", "torch.distributed.run"),
                                            *(str(SCRIPT), "--folder", str(self.folder(out))),
                                            *("--epochs", str(self.epochs)),
                                            *("--step-seconds", str(self.step_seconds)),
                                        ],
                                        "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}},
                                    }
                                ],
                            }
                        },
                    }
                },
            },
        }


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The samples and accuracy of a training, counted in nothing but the job's folder."""

    accuracy: float
    epochs: int
    lost: int
    repeated: int
    undone: int
    """Samples whose step was rolled back after a crash and done again."""


class BrokenPromise(Exception):
    """A claim of the demo did not hold; the message says which and how."""


async def _python(*arguments: str, limit: float, expect: tuple[int, ...] = (0,)) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit)
    except TimeoutError:
        program = " ".join(arguments[:3])
        raise BrokenPromise(f"{program} ends within {limit:.0f} s: it did not") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode not in expect:
        raise BrokenPromise(
            f"{' '.join(arguments[:3])}: exit code {process.returncode}: {err.decode()[-800:]}"
        )
    return out.decode()


async def judge(job: DemoJob, out: Path, slow: float = 1.0) -> TrainingResult:
    """Counts the job's samples.

    Args:
        slow: this machine's slowness, as machine_speed has it.

    Raises:
        BrokenPromise: the program that counts failed.
    """
    counted = await _python(
        *("-m", "elastic_trainer.data.audit", str(job.folder(out) / "audit"), "--json"),
        *("--samples", str(SAMPLES), "--epochs", str(job.epochs)),
        expect=(0, 1),
        limit=_JUDGE_SECONDS * slow,
    )
    report = json.loads(counted)
    result = json.loads((job.folder(out) / "result.json").read_text())
    return TrainingResult(
        accuracy=result["accuracy"],
        epochs=report["epochs"],
        lost=report["lost"],
        repeated=report["repeated"],
        undone=report["undone"],
    )


async def train_alone(job: DemoJob, out: Path, slow: float = 1.0) -> float:
    """Returns the test accuracy of the same training on one fixed worker.

    Raises:
        BrokenPromise: it failed.
    """
    said = await _python(
        *(str(SCRIPT), "--folder", str(out / f"alone-{job.name}"), "--epochs", str(job.epochs)),
        limit=_JUDGE_SECONDS * slow,
    )
    return float(json.loads(said.strip().splitlines()[-1])["accuracy"])
