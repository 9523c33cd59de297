"""Stock torchrun (`rdzvBackend: c10d`, Kubeflow's default) shrinks, grows and survives its nodes.

How long each takes is printed, and none may take as long as torchrun's own time-outs, for which a
change that goes wrong waits. The container that serves the store is not started again for any.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.kubelet.fault import ANNOTATION
from embedded_cluster.readiness import free_port
from volcano_elastic.kube.resource import NODES, PODS, PYTORCHJOBS

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]
SCRIPT = Path(__file__).with_name("plain_torchrun.py")
TIMEOUTS_SECONDS = 90
"""A change that waits for torchrun's time-outs, a store's of 60 s first, takes longer than this on
any machine."""
GPU = {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}


class Step(NamedTuple):
    number: int
    world: int
    time: float


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one GPU each."""
    lifecycle = ("--node-monitor-grace-period", "4")
    async with running(
        fresh_control_plane, tmp_path, nodes=3, gpus_per_node=1, kubelet_arguments=lifecycle
    ) as found:
        yield found


def manifest(name: str, command: list[str], policy: dict[str, Any] | None) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "train", "command": command, "resources": GPU}
    worker = {
        "replicas": 1,
        "restartPolicy": "OnFailure",
        "template": {"spec": {"containers": [container]}},
    }
    elastic: dict[str, Any] = {"elasticPolicy": policy, "nprocPerNode": "1"} if policy else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": elastic | {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def torchrun(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    run = f"{sys.executable} -m torch.distributed.run {SCRIPT} {folder}"
    command = ["sh", "-c", f"exec {run} >> {folder}/worker-$VOLCANO_ELASTIC_POD_INDEX.log 2>&1"]
    elastic: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 3, "cooldownSeconds": 0}
    # Its store listens at all addresses, also those of other tests' pods.
    elastic |= {"rdzvPort": free_port(), "rdzvBackend": "c10d"}
    return manifest("plain", command, elastic)


def steps(folder: Path) -> list[Step]:
    log = folder / "steps.log"
    lines = log.read_text().splitlines() if log.exists() else []
    found = (line.split() for line in lines)
    return [Step(int(n), int(world), float(t)) for n, world, t in (f for f in found if len(f) == 3)]


async def trains(stage: Stage, folder: Path, world: int, what: str) -> float:
    """Waits until the job trains in this world; returns and prints for how many seconds it stood
    still, 0.0 at its start."""
    before = len(steps(folder))

    def there() -> bool:
        new = steps(folder)[before:]
        return bool(new) and new[-1].world == world

    await stage.until(there, what, 180)
    found = steps(folder)
    if not before:
        return 0.0
    at = max(i for i, s in enumerate(found) if s.world != found[i - 1].world)
    still = found[at].time - found[at - 1].time
    print(f"{what}: {still:.1f} s from step to step")
    return still


async def worker(stage: Stage, index: int) -> dict[str, Any]:
    name = f"plain-worker-{index}"
    found: dict[str, Any] = await stage.recorder.jobs.client.get(PODS, name, "default")
    return found


def restarts(pod: dict[str, Any]) -> int:
    return sum(s["restartCount"] for s in pod["status"]["containerStatuses"])


async def finish(stage: Stage, folder: Path) -> None:
    (folder / "stop").touch()
    over = stage.recorder.timeline.finished
    await stage.until(lambda: "plain" in over, "plain ends", 120)
    assert over["plain"][1] == "Succeeded", stage.story()
    numbers = [s.number for s in steps(folder)]
    assert numbers == list(range(1, len(numbers) + 1)), "no step is lost or done again"


async def test_it_shrinks_grows_and_survives_its_nodes(stage: Stage) -> None:
    client, folder = stage.recorder.jobs.client, stage.out / "plain"
    await client.create(PYTORCHJOBS, torchrun(folder))
    await trains(stage, folder, 3, "start")
    first = await worker(stage, 0)
    await client.create(PYTORCHJOBS, manifest("other", ["sleep", "3600"], None))
    assert await trains(stage, folder, 2, "shrink") < TIMEOUTS_SECONDS
    await client.delete(PYTORCHJOBS, "other", "default")
    assert await trains(stage, folder, 3, "growth") < TIMEOUTS_SECONDS
    node = (await worker(stage, 2))["spec"]["nodeName"]
    await fault(stage, node, "down")
    assert await trains(stage, folder, 2, "node loss") < TIMEOUTS_SECONDS
    assert restarts(await worker(stage, 0)) == restarts(first), "who serves the store stays"
    await fault(stage, node, None)
    await fault(stage, first["spec"]["nodeName"], "down")
    await stage.until(lambda: remade(stage, 0, first), "worker 0 is made anew", 120)
    assert await trains(stage, folder, 2, "loss of worker 0's node") < TIMEOUTS_SECONDS
    assert restarts(await worker(stage, 1)) > 0, "who met there has begun anew"
    await finish(stage, folder)


async def fault(stage: Stage, node: str, what: str | None) -> None:
    body = {"metadata": {"annotations": {ANNOTATION: what}}}
    await stage.recorder.jobs.client.patch(NODES, node, None, body)


def remade(stage: Stage, index: int, before: dict[str, Any]) -> bool:
    return any(
        pod.job == "plain" and pod.index == index and uid != before["metadata"]["uid"]
        for uid, pod in stage.recorder.timeline.pods.items()
    )
