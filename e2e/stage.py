"""A cluster with everything in it, as one test sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e import volcano
from embedded_cluster.cluster import LocalCluster
from embedded_cluster.conformance.control_plane import ControlPlane
from tests import program
from tests.patience import eventually
from volcano_elastic.demo.recorder import Recorder
from volcano_elastic.demo.training import SAMPLES, SCRIPT, DemoJob, TrainingResult, judge
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import EVENTS, PODS, PYTORCHJOBS

_JOB_LABEL = "training.kubeflow.org/job-name"
PATIENCE = 180.0
"""Seconds that anything may take which is waited for, on a machine that has other work. Less than
those after which pods of dead nodes go anyway."""


def hurrying(script: str, *, lasts: bool = True) -> str:
    """Return the demo's script, or one like it, whose steps are no longer stretched once `hurry` is
    in its folder; see `Stage.submit`."""
    stretched = "time.sleep(given.step_seconds)"
    assert stretched in script
    hurry = "__import__('os').path.exists(given.folder + '/hurry')"
    last = f"data.consumed > {SAMPLES} * given.epochs * 2 / 3"
    longer = f"time.sleep(given.step_seconds * (10 if {last} else 1))"
    return script.replace(stretched, f"{hurry} or {longer if lasts else stretched}")


@dataclass
class Stage:
    """A running cluster, what it is seen doing, and a folder for its jobs."""

    plane: ControlPlane
    cluster: LocalCluster
    recorder: Recorder
    out: Path

    async def submit(self, job: DemoJob, *, lasts: bool = True) -> None:
        """Create the job.

        Args:
            lasts: its last third takes ten times as long, until it is to hurry, so that a test on a
                busy machine does not find it at its end.
        """
        job.folder(self.out).mkdir(parents=True)
        manifest = job.manifest(self.out)
        for role in manifest["spec"]["pytorchReplicaSpecs"].values():
            (container,) = role["template"]["spec"]["containers"]
            script = str(self._script(lasts))
            container["command"] = [
                script if word == str(SCRIPT) else word for word in container["command"]
            ]
        self.recorder.timeline.submitted[job.name] = self.recorder.now()
        await self.recorder.jobs.client.create(PYTORCHJOBS, manifest)

    def _script(self, lasts: bool) -> Path:
        file = self.out / ("lasting.py" if lasts else SCRIPT.name)
        file.write_text(hurrying(SCRIPT.read_text(), lasts=lasts))
        return file

    async def edit(self, job: DemoJob, spec: dict[str, Any]) -> None:
        """Change the object, as `kubectl patch` does."""
        client = self.recorder.jobs.client
        await client.patch(PYTORCHJOBS, job.name, "default", {"spec": spec})

    def training(self, job: DemoJob) -> dict[str, Any]:
        return self.recorder.training.get(job.name, {})

    def world(self, job: DemoJob) -> int:
        """Workers of the running round; 0 while there is none."""
        status = self.training(job)
        return int(status.get("world") or 0) if status.get("phase") == "running" else 0

    def worlds(self, job: DemoJob) -> list[int]:
        """Workers of every round so far."""
        return [entry["world"] for entry in self.training(job).get("rounds", ())]

    def finished(self, job: DemoJob) -> str | None:
        return self.recorder.timeline.finished.get(job.name, (0, None))[1]

    async def until(
        self, holds: Callable[[], object], what: str, seconds: float = PATIENCE
    ) -> None:
        deadline = self.recorder.now() + seconds
        while not holds():
            if self.recorder.now() > deadline:
                pytest.fail(f"{what}: not within {seconds} s\n{self.story()}")
            await asyncio.sleep(0.05)

    async def until_asked(
        self, holds: Callable[[], Awaitable[object]], what: str, seconds: float = PATIENCE
    ) -> None:
        """Like `until`, for what the API server has to be asked: what is not there yet, or a
        field that is not written yet, is waited for."""
        try:
            await eventually(holds, what, seconds=seconds)
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.story()}")

    async def wait_for_events(self, reason: str, *words: str, name: str = "") -> list[str]:
        """Return the messages of the Events with this reason and words, about the object of this
        name where one is given, once there is one: it may be written after what it tells of was
        done."""
        found: list[str] = []

        async def told() -> bool:
            events = (await self.recorder.jobs.client.list(EVENTS))["items"]
            about = [e for e in events if not name or e["involvedObject"].get("name") == name]
            texts = [e["message"] for e in about if e["reason"] == reason]
            found[:] = [text for text in texts if all(word in text for word in words)]
            return bool(found)

        await self.until_asked(told, f"an Event {reason} says {words or 'anything'}")
        return found

    async def steps_on(self, job: DemoJob, seconds: float = PATIENCE) -> None:
        """Waits until the job has made five more steps than now."""
        now = self.training(job).get("step") or 0
        await self.until(
            lambda: self.finished(job) or (self.training(job).get("step") or 0) >= now + 5,
            f"{job.name} trains on",
            seconds,
        )

    def hurry(self, job: DemoJob) -> None:
        """Have the job come to its end soon: its steps are no longer stretched."""
        (job.folder(self.out) / "hurry").touch()

    async def judge_finished(self, job: DemoJob, seconds: float = PATIENCE) -> TrainingResult:
        """Wait for the job's end, which comes soon now, and check that it trained on each sample
        once."""
        self.hurry(job)
        await self.until(lambda: self.finished(job), f"{job.name} finishes", seconds)
        assert self.finished(job) == "Succeeded", self.story()
        result = await judge(job, self.out)
        assert (result.lost, result.repeated) == (0, 0)
        return result

    def story(self) -> str:
        tails = []
        logs = [*self.cluster.logs.glob("*.log"), *self.plane.folder.glob("*.log")]
        pods = self.cluster.pods_folder.glob("*/*.log")
        for log in [*sorted(logs), *sorted(pods)]:
            named = log.name if log in logs else f"{log.parent.name}/{log.name}"
            lines = log.read_text(errors="replace").splitlines()[-15:]
            tails.append(f"--- {named}\n" + "\n".join(lines))
        sizes = [f"{c.at:.1f}: {c.job} {c.old}→{c.new} {c.reason}" for c in self.changes]
        return "\n".join([*sizes, str(self.recorder.training), *tails])

    @property
    def changes(self) -> list[Any]:
        return self.recorder.timeline.changes


@asynccontextmanager
async def running(
    plane: ControlPlane,
    out: Path,
    *,
    nodes: int = 2,
    gpus_per_node: int = 2,
    kubelet: str = "process",
    kubelet_arguments: Sequence[str] = (),
    operator: bool = True,
    operator_arguments: Sequence[str] = (),
) -> AsyncIterator[Stage]:
    """Virtual nodes, scheduler (Volcano's own with VOLCANO_BIN), kubelet, and an operator unless
    the test brings its own."""
    async with plane.client() as client:
        await volcano.serve_its_kinds(client)
    prepared = ("--prepared", "e2e.prepared") if kubelet == "process" else ()
    async with (
        LocalCluster(
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            kubelet=kubelet,
            existing=plane.kubeconfig,
            kubelet_arguments=[*plane.kubelet_arguments, *prepared, *kubelet_arguments],
            operator=operator,
            operator_arguments=operator_arguments,
            commands=volcano.commands(plane),
            start=program.start,
        ) as cluster,
        cluster.client() as client,
    ):
        recorder = Recorder(client, lambda text: print(text))
        watching = asyncio.create_task(recorder.run())
        await asyncio.wait_for(recorder.nodes.synced.wait(), 120)
        try:
            yield Stage(plane, cluster, recorder, out)
        finally:
            if plane.kept:
                await _remove_jobs(client)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _remove_jobs(client: Client) -> None:
    """All of the namespace `default`, and their pods while there is a kubelet to end them."""
    await client.request("DELETE", PYTORCHJOBS.path("default"))
    for _ in range(300):
        if not (await client.list(PODS, "default", label_selector=_JOB_LABEL))["items"]:
            return
        await asyncio.sleep(0.2)
    pytest.fail("pods of removed jobs are still there after a minute")
