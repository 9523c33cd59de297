"""D9, scaled down: a job under a limit of 15 CPUs whose owner guessed 8 for a worker begins with
one, and has by itself what the limit carries once it was measured for seconds, not minutes.

DeepFM trains with a real parameter server, each worker in a control group of its own, by which it
is measured; a CPU of the fifteen is a tenth of one of this machine's. Where no control groups can
be made, the all-reduce job alone shows the loop: its group is a folder that says what a container
of 3 CPUs would.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.agent import control_group

from e2e import real_groups
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.brain.test_program import brain
from volcano_elastic import assets
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION, CPU_LIMIT_ANNOTATION
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.client import NotFound
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS, QUEUEPOLICIES, QUEUES, SCALEPLANS

pytestmark = pytest.mark.e2e

LIMIT, USED, GUESSED = 15, 3.0, 8
MEMORY = 300 << 20


def guessed(manifest: dict[str, Any], group: Path, cpu: int = 1000) -> dict[str, Any]:
    """Return the job as somebody writes it who doesn't know what it needs.

    Args:
        group: where control groups are mounted.
        cpu: thousandths that are taken for a CPU.
    """
    manifest["metadata"]["annotations"] = {
        BRAIN_ANNOTATION: "Live",
        CPU_LIMIT_ANNOTATION: f"{LIMIT * cpu}m",
    }
    manifest["spec"]["elasticPolicy"]["cooldownSeconds"] = 0
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": f"{GUESSED * cpu}m", "memory": "512Mi"}}
    container["env"] = [{"name": "VOLCANO_ELASTIC_CONTROL_GROUP", "value": str(group)}]
    return manifest


class AllReduce(DemoJob):
    def manifest(self, out: Path) -> dict[str, Any]:
        return guessed(DemoJob.manifest(self, out), out / "group")


TENTH = 100
"""Thousandths: what the job with a parameter server takes for a CPU."""
DEEPFM = f"""\
import sys, time
sys.path.insert(0, {str(assets.EXAMPLES.resolve())!r})
import clicks, torch
from criteo import generate
from elastic_trainer import ElasticDataset, ElasticEmbedding, ElasticLoop, ServedTables
from elastic_trainer.embeddings.row_optimizer import Adagrad

torch.set_num_threads(1)
torch.manual_seed(0)
clicks.table = lambda name, width: ElasticEmbedding(
    name, width, optimizer=Adagrad(lr=0.02), mode="sequence", bound=clicks.BOUND
)
net = clicks.DeepFM()
tables = ServedTables([net.rows])
data = ElasticDataset(
    torch.utils.data.TensorDataset(*generate(20_000)), batch_size=64, epochs=1000
)
optimizer = torch.optim.Adagrad(net.deep.parameters(), lr=0.02)
loop = ElasticLoop(sys.argv[2], model=net, optimizer=optimizer, data=data)
for ids, clicked in loop:
    time.sleep(0.4)  # a batch comes from a store that takes its time
    with loop.step():
        loss = torch.nn.functional.binary_cross_entropy_with_logits(loop.model(ids), clicked)
        (loop.weight * loss).backward()
        tables.step()
"""


class DeepFM(DemoJob):
    """With one parameter server, whose CPU is guessed well."""

    def manifest(self, out: Path) -> dict[str, Any]:
        manifest = DemoJob.manifest(self, out)
        script, folder = out / "deepfm.py", self.folder(out)
        script.write_text(DEEPFM)
        guessed(manifest, control_group.ROOT, TENTH)
        manifest["spec"]["nprocPerNode"] = "2"
        replicas = manifest["spec"]["pytorchReplicaSpecs"]
        (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
        worker["command"] = [
            *real_groups.entered(),
            *("python", "-m", "torch.distributed.run", str(script), "--folder", str(folder)),
        ]
        server = ["python", "-m", "elastic_trainer.parameter_server"]
        container = {
            "name": "pytorch",
            "image": "volcano-elastic-trainer",
            "command": [*server, "--storage", str(folder / "servers")],
            "resources": {"requests": {"cpu": f"{2 * TENTH}m", "memory": "512Mi"}},
        }
        replicas["PS"] = {
            "replicas": 1,
            "restartPolicy": "OnFailure",
            "template": {"spec": {"containers": [container]}},
        }
        return manifest


@asynccontextmanager
async def made_up_group(folder: Path) -> AsyncIterator[None]:
    """Says what a container does that uses 3 CPUs all the time."""
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory\n")
    (folder / "memory.current").write_text(f"{MEMORY}\n")
    (folder / "memory.stat").write_text("inactive_file 0\n")

    def tick() -> None:
        told = folder / "cpu.stat.new"
        told.write_text(f"usage_usec {round(time.monotonic() * USED * 1e6)}\n")
        told.replace(folder / "cpu.stat")

    async def run() -> None:
        while True:
            tick()
            await asyncio.sleep(0.1)

    tick()
    running_ = asyncio.create_task(run())
    try:
        yield
    finally:
        running_.cancel()
        await asyncio.gather(running_, return_exceptions=True)


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """A queue of 15 CPUs, and Brain, which judges after five seconds instead of three minutes."""
    url, log = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "brain.log"
    async with (
        running(fresh_control_plane, tmp_path, nodes=1, gpus_per_node=0) as found,
        made_up_group(found.out / "group"),
        brain(found.plane.kubeconfig, url, log, "--live-after-seconds", "5"),
    ):
        client = found.recorder.jobs.client
        await client.patch(QUEUES, "default", None, {"spec": {"capability": {"cpu": LIMIT}}})
        policy = {
            "apiVersion": QUEUEPOLICIES.api_version,
            "kind": "QueuePolicy",
            "metadata": {"name": "default"},
            "spec": {"queue": "default", "resource": "cpu", "grow": {"cooldownSeconds": 0}},
        }
        await client.create(QUEUEPOLICIES, policy)
        yield found


async def speeds(stage: Stage, job: DemoJob) -> dict[str, float]:
    found = await stage.recorder.jobs.client.get(PYTORCHJOBS, job.name, "default")
    return dict((found["status"].get("elastic") or {}).get("speeds") or {})


async def grows(stage: Stage, job: DemoJob, wanted: int) -> None:
    """Waits until the job has grown by itself, and was measured to be faster for it.

    Its first seconds with that many workers may be slow on a machine that does other things, too;
    the speed is measured on and on.
    """
    found: dict[str, float] = {}

    async def faster() -> bool:
        found.update(await speeds(stage, job))
        return found.get(str(wanted), 0.0) > found.get("1", math.inf)

    await stage.until(lambda: stage.world(job) == wanted, f"{job.name} has {wanted} workers", 240)
    await stage.until_asked(faster, f"{job.name} is faster with {wanted} workers than with one")
    print(f"{job.name}: {found['1']:.1f} -> {found[str(wanted)]:.1f} samples/s")
    assert stage.worlds(job)[0] == 1


async def test_an_all_reduce_job_grows_to_what_15_cpus_carry(stage: Stage) -> None:
    job = AllReduce("alone", min=1, max=8, epochs=1000, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 1, "it begins with the worker that fits")
    # p95 of 3 CPUs in the histogram's bucket, and 15 %: four of them.
    await grows(stage, job, 4)
    pods = (await stage.recorder.jobs.client.list(PODS, "default"))["items"]
    asked = {p["spec"]["containers"][0]["resources"]["requests"]["cpu"] for p in pods}
    (cpu,) = asked
    assert 3 * 4 <= 4 * int(cpu.removesuffix("m")) / 1000 <= LIMIT


@pytest.mark.usefixtures("control_groups")
async def test_deepfm_with_a_parameter_server_grows_to_what_15_tenths_of_a_cpu_carry(
    stage: Stage,
) -> None:
    client = stage.recorder.jobs.client
    await client.patch(
        QUEUES, "default", None, {"spec": {"capability": {"cpu": f"{LIMIT * TENTH}m"}}}
    )
    job = DeepFM("deepfm", min=1, max=6, epochs=0, step_seconds=0)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 1, "it begins with the worker that fits")
    found: dict[str, Any] = {}

    async def planned() -> bool:
        try:
            found.update(await client.get(SCALEPLANS, "deepfm-brain", "default"))
        except NotFound:
            return False
        return True

    await stage.until_asked(planned, "Brain has a plan for it", 300)
    reason = found["metadata"]["annotations"]["volcano-elastic.io/reason"]
    wanted = found["spec"]["replicaResourceSpecs"]["Worker"]["replicas"]
    print(f"{reason} -> {wanted} workers")
    assert reason.endswith(f"{LIMIT * TENTH}m CPU carry {wanted}")
    assert found["metadata"]["labels"] == {"scale-type": "auto"}
    assert 1 < wanted <= 6, "a worker uses more than it was guessed to, or next to nothing"
    await grows(stage, job, wanted)
