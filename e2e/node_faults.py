"""A job under faults of whole nodes, and what must hold of it whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from elastic_trainer.store.storage import Storage, UnavailableError

from e2e.stage import PATIENCE, Stage
from embedded_cluster.kubelet.fault import ANNOTATION
from tests.elastic_trainer.fault_oracle import Identity, check_commits
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import EVENTS, NODES, PODS

WATCHED = ("--node-monitor-grace-period", "2", "--restart-back-off", "1")
"""Arguments of a kubelet whose nodes are not Ready after so many silent seconds (40 elsewhere), and
which waits less between restarts (10 s elsewhere)."""


@dataclass
class FaultyCluster:
    """A stage whose nodes have faults, and a job on it."""

    stage: Stage
    job: DemoJob
    commits: set[Identity] = field(default_factory=set)
    """Those that were ever seen in the job's folder."""
    hit: set[str] = field(default_factory=set)
    """Nodes that have had a fault."""

    async def fault(self, kind: str | None, *nodes: str) -> None:
        """Let nodes have a fault, or none."""
        self.hit.update(nodes)
        body = {"metadata": {"annotations": {ANNOTATION: kind}}}
        client = self.stage.recorder.jobs.client
        await asyncio.gather(*(client.patch(NODES, node, None, body) for node in nodes))

    async def pod(self, index: int | str) -> dict[str, Any]:
        """Return a worker, or the pod of this suffix."""
        name = f"worker-{index}" if isinstance(index, int) else index
        client = self.stage.recorder.jobs.client
        found: dict[str, Any] = await client.get(PODS, f"{self.job.name}-{name}", "default")
        return found

    async def node(self, index: int | str) -> str:
        return str((await self.pod(index))["spec"]["nodeName"])

    async def made_anew(self, uids: Collection[str]) -> None:
        """Wait until others run in the place of these pods."""
        pods = self.stage.recorder.timeline.pods
        lost = {pods[uid].index for uid in uids}

        def others() -> set[int]:
            return {p.index for uid, p in pods.items() if uid not in uids and p.live}

        at = self.stage.recorder.now()
        await self.stage.until(lambda: lost <= others(), "the lost pods are made anew")
        print(f"made anew after {self.stage.recorder.now() - at:.1f} s")

    async def assert_same(self, before: dict[str, Any], *, containers: bool = True) -> None:
        """It is still this pod, and where `containers` in the same life."""
        client = self.stage.recorder.jobs.client
        now = await client.get(PODS, before["metadata"]["name"], "default")
        same = now["metadata"]["uid"] == before["metadata"]["uid"]
        if containers:
            same &= _ids(now) == _ids(before)
        if not same:
            events = (await client.list(EVENTS))["items"]
            told = "\n".join(f"{e['reason']}: {e['message']}" for e in events)
            name = before["metadata"]["name"]
            pytest.fail(f"expected {name} unharmed, found another\n{told}\n{self.stage.story()}")

    async def train_together(self, world: int) -> None:
        await self.stage.until(lambda: self.stage.world(self.job) == world, f"{world} train")
        await self.stage.steps_on(self.job)

    async def trains_unheard(self, seconds: float = PATIENCE) -> None:
        """Wait until more was trained, whoever hosts the coordinator."""
        before = self._trained()
        await self.stage.until(lambda: self._trained() > before + 2500, "it trains on", seconds)

    def starts(self) -> list[int]:
        """Return the step at which each run of workers began, oldest first."""
        files = sorted((self.job.folder(self.stage.out) / "audit").glob("run-*-rank-00000.jsonl"))
        return [_start(file.read_text()) for file in files]

    def _trained(self) -> int:
        """Return bytes of the record of what was trained on, which only grows."""
        files = (self.job.folder(self.stage.out) / "audit").glob("*.jsonl")
        return sum(file.stat().st_size for file in files)

    async def judge_finished(self) -> None:
        """No pod left a sound node, no sample and no commit was lost, none was made twice."""
        for pod in self.stage.recorder.timeline.of(self.job.name):
            assert pod.node is None or pod.node in self.hit or pod.told_to_leave is None, (
                f"a healthy pod stays: {pod}"
            )
            assert pod.node is None or pod.node in self.hit or pod.ended is None, (
                f"a healthy pod stays: {pod}"
            )
        result = await self.stage.judge_finished(self.job)
        assert self.commits, "none was seen"
        check_commits(self.job.folder(self.stage.out), self.commits, ())
        print(f"{len(self.commits)} commits, {result}")


def _ids(pod: dict[str, Any]) -> list[str]:
    return [str(c["containerID"]) for c in pod["status"]["containerStatuses"]]


def _start(text: str) -> int:
    return int(json.loads(text.partition("\n")[0])["start_step"])


@asynccontextmanager
async def submitted(stage: Stage, job: DemoJob) -> AsyncIterator[FaultyCluster]:
    """The job, whose commits are noted as they come."""
    found = FaultyCluster(stage, job)
    await stage.submit(job)
    storage = Storage(job.folder(stage.out))

    async def look() -> None:
        while True:
            with contextlib.suppress(UnavailableError):
                commits = await asyncio.to_thread(storage.commits)
                found.commits.update(commit.identity for commit in commits)
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield found
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
