"""A PyTorchJob whose parameter servers are killed, and whose queue shrinks its workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.stage import Stage, hurrying
from embedded_cluster.kubelet.fault import ANNOTATION
from volcano_elastic.api import checkpoint_size
from volcano_elastic.api.server_bounds import BOUNDS_ANNOTATION
from volcano_elastic.demo.training import SAMPLES, SCRIPT, DemoJob
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS, SCALEPLANS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]

EDITS = (
    (
        "from elastic_trainer import ElasticDataset, ElasticLoop",
        "from elastic_trainer import ElasticDataset, ElasticEmbedding, ElasticLoop, ServedTables\n"
        "from elastic_trainer.embeddings.row_optimizer import Adagrad",
    ),
    (
        "def scale(",
        'pixels = ElasticEmbedding("pixels", 10, optimizer=Adagrad(lr=0.02), bound=1e-3)\n'
        "tables = ServedTables([pixels])\n"
        "place = 17 * torch.arange(64)\n\n\ndef scale(",
    ),
    (
        "cross_entropy(loop.model(images), labels)",
        "cross_entropy(\n"
        "            loop.model(images) + pixels((images * 16).long() + place), labels\n"
        "        )",
    ),
    ("(loop.weight * loss).backward()", "(loop.weight * loss).backward()\n        tables.step()"),
)
"""Edits that make the demo's script one with a table on servers."""


def _script(folder: Path) -> Path:
    text = SCRIPT.read_text()
    for old, new in EDITS:
        assert old in text
        text = text.replace(old, new)
    file = folder / "served_digits.py"
    file.write_text(hurrying(text))
    return file


@dataclass(frozen=True, slots=True)
class ServedJob(DemoJob):
    """With two parameter servers, each of which keeps a copy of the other's rows."""

    def manifest(self, out: Path) -> dict[str, Any]:
        manifest = DemoJob.manifest(self, out)
        replicas = manifest["spec"]["pytorchReplicaSpecs"]
        (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
        script = str(_script(out))
        worker["command"] = [script if word == str(SCRIPT) else word for word in worker["command"]]
        server = {
            "name": "pytorch",
            "image": "volcano-elastic-trainer",
            "command": [
                *("python", "-m", "elastic_trainer.parameter_server"),
                *("--storage", str(self.folder(out) / "servers"), "--copy-every", "0.5"),
            ],
            "resources": {"limits": {"cpu": 1}},
        }
        replicas["PS"] = {
            "replicas": 2,
            "restartPolicy": "OnFailure",
            "template": {"spec": {"containers": [server]}},
        }
        return manifest


@dataclass(frozen=True, slots=True)
class FullJob(ServedJob):
    """With one parameter server, whose process alone has more memory than its pod asked for. (With
    a limit it might be killed: a fork's memory is what others don't share with it just then.)"""

    def manifest(self, out: Path) -> dict[str, Any]:
        manifest = ServedJob.manifest(self, out)
        manifest["metadata"].setdefault("annotations", {})[BOUNDS_ANNOTATION] = "1-2"
        servers = manifest["spec"]["pytorchReplicaSpecs"]["PS"]
        servers["replicas"] = 1
        (container,) = servers["template"]["spec"]["containers"]
        container["resources"]["requests"] = {"memory": "64Mi"}
        return manifest


def _server(stage: Stage, job: DemoJob, index: int) -> str:
    """Return the running container of the server that is to stay; empty while there is none."""
    pod = stage.recorder.pods.get(f"default/{job.name}-ps-{index}")
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return ""
    found = pod["status"].get("containerStatuses", ())
    return next((str(one["containerID"]) for one in found if "running" in one["state"]), "")


async def _scaled(stage: Stage, job: ServedJob, servers: int) -> None:
    """Have a ScalePlan bring servers, its end take them away, an edit bring them again, and bounds
    for what their loads may change one more."""
    client = stage.recorder.jobs.client

    async def there(count: int) -> None:
        def holds() -> bool:
            return bool(_server(stage, job, count - 1)) and not _server(stage, job, count)

        await stage.until(holds, f"{count} servers serve")
        await stage.steps_on(job)

    plan = {
        "apiVersion": SCALEPLANS.api_version,
        "kind": SCALEPLANS.kind,
        "metadata": {"name": "more", "namespace": "default"},
        "spec": {
            "ownerJob": job.name,
            "replicaResourceSpecs": {"PS": {"replicas": servers}},
        },
    }
    await client.create(SCALEPLANS, plan)
    await there(servers)
    await client.delete(SCALEPLANS, "more", "default")
    await there(2)
    patch = {"spec": {"pytorchReplicaSpecs": {"PS": {"replicas": servers}}}}
    await client.patch(PYTORCHJOBS, job.name, "default", patch)
    await there(servers)
    bounds = {"volcano-elastic.io/parameter-servers": f"{servers + 1}-{servers + 1}"}
    await client.patch(PYTORCHJOBS, job.name, "default", {"metadata": {"annotations": bounds}})
    await there(servers + 1)
    told = {f"{job.name}-ps-{index}" for index in range(servers + 1)}

    async def is_told() -> bool:
        found = (await client.get(PYTORCHJOBS, job.name, "default"))["status"]
        pods = (found["elastic"].get("loads") or {}).get("pods") or {}
        return told <= pods.keys() and "PS" in checkpoint_size.reported(found)

    await stage.until_asked(is_told, "its status has its servers' loads, and their rows' size")
    status = (await client.get(PYTORCHJOBS, job.name, "default"))["status"]
    assert status["elastic"]["servers"] == {
        "replicas": servers + 1,
        "insteadOf": servers,
        "message": f"{servers + 1} to {servers + 1} may be",
    }


async def test_servers_come_go_and_are_killed_and_workers_shrink_while_a_job_trains(
    stage: Stage,
) -> None:
    job = ServedJob("served", min=1, max=3, epochs=10, step_seconds=0.2)
    newcomer = DemoJob("newcomer", min=2, max=2, epochs=2, step_seconds=1.0)
    client = stage.recorder.jobs.client
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 3, "the job grows to 3 workers")
    await stage.steps_on(job)
    pods = {p["metadata"]["name"]: p for p in (await client.list(PODS, "default"))["items"]}
    assert {"served-ps-0", "served-ps-1"} <= pods.keys()
    before = [_server(stage, job, index) for index in (0, 1)]
    await _scaled(stage, job, 3)
    assert before == [_server(stage, job, index) for index in (0, 1)]
    assert set(stage.worlds(job)[stage.worlds(job).index(3) :]) == {3}, "no worker was lost"

    for index in (1, 0):
        container = _server(stage, job, index)
        kill = {"metadata": {"annotations": {ANNOTATION: "kill"}}}
        await client.patch(PODS, f"served-ps-{index}", "default", kill)
        await stage.until(
            lambda i=index, one=container: _server(stage, job, i) not in ("", one),  # type: ignore[misc]
            f"server {index} is started again",
        )
        await stage.steps_on(job)
    assert stage.worlds(job)[-1] == 3, "no worker was lost with it"

    await stage.submit(newcomer)
    await stage.until(lambda: stage.world(newcomer) == 2, "the newcomer has its minimum")
    await stage.until(lambda: stage.worlds(job)[-1:] in ([1], [2]), "the job trains on with less")
    await stage.steps_on(job)
    stage.hurry(newcomer)
    await stage.until(lambda: stage.finished(newcomer), "the newcomer finishes")

    result = await stage.judge_finished(job)
    assert result.epochs == job.epochs
    assert result.accuracy > 0.8, f"{job.epochs * SAMPLES} samples must have taught it something"
    await stage.until(lambda: not any(_server(stage, job, i) for i in (0, 1)), "servers end")
    status = (await client.get(PYTORCHJOBS, "served", "default"))["status"]
    assert status["replicaStatuses"]["PS"].get("failed", 0) == 0


async def test_a_server_whose_memory_is_full_is_joined_by_another(stage: Stage) -> None:
    job = FullJob("full", min=1, max=1, epochs=10, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: bool(_server(stage, job, 0)), "it has its server")
    await stage.until(lambda: bool(_server(stage, job, 1)), "it is joined by another one")
    await stage.steps_on(job)
    status = (await stage.recorder.jobs.client.get(PYTORCHJOBS, job.name, "default"))["status"]
    assert "memory" in status["elastic"]["servers"]["message"], status
    stage.hurry(job)
    result = await stage.judge_finished(job)
    assert result.epochs == job.epochs
