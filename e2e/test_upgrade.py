"""The operator of the version before is replaced by this one while a job trains, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kubectl import Kubectl
from e2e.stage import Stage, running
from e2e.test_doctor import doctor
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane
from tests.operator.process import OperatorProcess, eventually
from volcano_elastic.assets import OURS
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import CRDS, PODS
from volcano_elastic.operator.schema import REPAIR

pytestmark = pytest.mark.e2e

BEFORE_TAGS = "0dc6d87"
"""Stands for the version before as long as none is tagged: its CRDs lack fields of today's."""
Object = dict[str, Any]


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, timeout=60)


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Return the tree of the version before."""
    tagged = git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    version = tagged.stdout.decode().strip() or BEFORE_TAGS
    packed = git("archive", version, "volcano_elastic", "crds", "manifests", "examples")
    if packed.returncode:
        pytest.skip(f"this checkout has no history up to {version}: git fetch --unshallow")
    tree = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="tar")
    where = "import volcano_elastic.operator as o; print(o.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=tree, capture_output=True, text=True, timeout=60
    )
    assert Path(found.stdout.strip()).is_relative_to(tree), found.stderr
    return tree


class Rollout:
    """Operators of both versions beside one another, as a Deployment's rollout has them."""

    def __init__(self, stage: Stage, previous: Path) -> None:
        self._stage, self._trees = stage, {"before": previous, "now": ROOT}
        self._made: list[OperatorProcess] = []

    def operator(self, version: str, name: str) -> OperatorProcess:
        identity = ("--leader-elect-identity", name)
        log = self._stage.out / f"{name}.log"
        made = OperatorProcess(
            self._stage.plane.kubeconfig,
            *("--leader-elect", "--leader-elect-resource-namespace", "default", *identity),
            log=log,
            root=self._trees[version],
        )
        self._made.append(made)
        return made

    async def stop(self) -> None:
        """Ends whichever still runs, however the test went."""
        for one in self._made:
            if one.process is not None:
                await one.stop()

    async def replace(self, old: OperatorProcess, new: OperatorProcess) -> None:
        """The newer pod is ready before the older one is told to end."""
        await new.start()
        await old.stop()

        async def leads() -> bool:
            return (await new.samples())["volcano_elastic_leader",] == 1

        await eventually(leads, "the newer operator leads")


async def put_crds(stage: Stage, folder: Path) -> None:
    """Serve a folder's CRDs as if no others had ever been applied."""
    client = stage.recorder.jobs.client
    for name in (name for name in OURS if (folder / name).exists()):
        crd = yaml.safe_load((folder / name).read_text())
        found = await client.get(CRDS, crd["metadata"]["name"])
        await client.replace(CRDS, {**found, "spec": crd["spec"]})


async def apply_crds(stage: Stage, tmp_path: Path) -> None:
    """Apply this version's CRDs as the operator's message says."""
    assert REPAIR.startswith("volcano-elastic crds | kubectl apply --server-side --force-conflicts")
    printed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "volcano_elastic.cli", "crds"), stdout=subprocess.PIPE
    )
    text, _ = await printed.communicate()
    (tmp_path / "crds.yaml").write_bytes(text)
    kubectl = Kubectl(stage.plane.kubeconfig, tmp_path, "default")
    await kubectl(
        *("apply", "--server-side", "--force-conflicts", "-f", str(tmp_path / "crds.yaml"))
    )


async def pods(stage: Stage, job: DemoJob) -> dict[str, tuple[str, int]]:
    """Return the uid of each of the job's pods and how often its container began anew, by name."""
    found = (await stage.recorder.jobs.client.list(PODS, "default"))["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(one["restartCount"] for one in pod["status"].get("containerStatuses") or ()),
        )
        for pod in found
        if pod["metadata"]["name"].startswith(f"{job.name}-")
        and not pod["metadata"].get("deletionTimestamp")
    }


async def test_jobs_train_on_through_upgrade_and_rollback(
    fresh_control_plane: ControlPlane, previous: Path, tmp_path: Path
) -> None:
    # Slow steps: it must outlast the start of operators and tools on a busy machine.
    job = DemoJob("job", min=1, max=3, epochs=9, step_seconds=1.0)
    newcomer = DemoJob("newcomer", min=2, max=2, epochs=1, step_seconds=1.0)
    async with (
        running(fresh_control_plane, tmp_path, operator=False) as stage,
        contextlib.AsyncExitStack() as stack,
    ):
        rollout = Rollout(stage, previous)
        stack.push_async_callback(rollout.stop)
        await put_crds(stage, previous / "crds")
        before = rollout.operator("before", "before")
        await before.start()
        await stage.submit(job)
        await stage.until(lambda: stage.world(job) == 3, "it trains at its size")
        there, rounds = await pods(stage, job), len(stage.worlds(job))
        assert len(there) == 3

        async def undisturbed() -> None:
            await stage.steps_on(job)
            assert await pods(stage, job) == there
            # A worker that a busy machine keeps silent for a second is not the operator's doing.
            more = [one["reason"] for one in stage.training(job)["rounds"][rounds:]]
            assert not more or any("silent" in reason for reason in more), more

        now = rollout.operator("now", "now")
        await rollout.replace(before, now)
        assert now.log is not None
        log = now.log

        async def refuses() -> bool:
            return REPAIR in log.read_text()

        await eventually(refuses, "the newer operator says that its CRDs are to be applied first")
        assert "status.elastic.progress" in log.read_text()
        (said,) = [
            one
            for one in (await asyncio.to_thread(doctor, fresh_control_plane.kubeconfig))[1]["crds"]
            if "pytorchjobs" in one["found"]
        ]
        assert (said["status"], said["repair"]) == ("Error", REPAIR)
        await undisturbed()
        await apply_crds(stage, tmp_path)

        async def works() -> bool:
            return (await now.samples())["volcano_elastic_schema_complete",] == 1

        await eventually(works, "it goes on by itself")
        await undisturbed()

        await stage.submit(newcomer)
        await stage.until(lambda: stage.world(newcomer) == 2, "the newer operator makes room")
        stage.hurry(newcomer)
        await stage.until(lambda: stage.finished(newcomer), "the newcomer finishes")
        await stage.until(lambda: stage.world(job) == 3, "and gives it back")
        there, rounds = await pods(stage, job), len(stage.worlds(job))
        await undisturbed()

        again = rollout.operator("before", "again")
        await rollout.replace(now, again)
        await undisturbed()
        await stage.judge_finished(job)
