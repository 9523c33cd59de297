"""One test a promise of the walking skeleton."""

from __future__ import annotations

import os
import signal

import pytest

from e2e.conftest import Promised
from e2e.stage import Stage
from volcano_elastic.demo.training import SAMPLES, DemoJob
from volcano_elastic.kube.resource import EVENTS, PODS, PYTORCHJOBS

pytestmark = pytest.mark.e2e


def _job(name: str, minimum: int, maximum: int, epochs: int, step_seconds: float) -> DemoJob:
    return DemoJob(name, min=minimum, max=maximum, epochs=epochs, step_seconds=step_seconds)


def _newcomer(name: str, size: int, epochs: int) -> DemoJob:
    """One that is there until it is told to hurry, however late it is looked for."""
    return _job(name, size, size, epochs, step_seconds=1.0)


async def _every_sample_once(stage: Stage, job: DemoJob) -> None:
    result = await stage.judge_finished(job)
    assert result.epochs == job.epochs
    assert result.accuracy > 0.8, f"{job.epochs * SAMPLES} samples must have taught it something"


async def test_a_job_grows_into_idle_gpus_and_shrinks_for_a_newcomer(
    stage: Stage, promised: Promised
) -> None:
    old, new = _job("old", 1, 4, epochs=8, step_seconds=0.2), _newcomer("new", 2, epochs=1)
    await stage.submit(old)
    await stage.until(lambda: stage.world(old) == 4, "old grows to 4")
    await stage.submit(new)
    await stage.until(lambda: stage.world(new) == 2, "new trains with its minimum")
    wait = stage.recorder.timeline.wait_for_first_pod("new")
    assert wait is not None
    promised("a newcomer's first pod runs", wait, 10)
    await stage.until(lambda: stage.world(old) == 2, "old trains on with 2")
    gone = {pod.index for pod in stage.recorder.timeline.of("old") if pod.told_to_leave}
    assert len(gone) == 2 and 0 not in gone, "two surplus workers leave, worker 0 stays"
    for reason in ("GrewIntoIdle", "ShrunkForMinimum"):
        await stage.wait_for_events(reason, name="old")
    events = await stage.recorder.jobs.client.list(EVENTS)
    assert "Evict" not in {e["reason"] for e in events["items"]}, "the policy acts before Volcano"
    stage.hurry(new)
    await stage.until(lambda: stage.finished(new), "new finishes")
    await _every_sample_once(stage, old)


async def test_a_running_job_follows_its_edited_range(stage: Stage) -> None:
    # Slow steps: it must outlast the start of everybody else's pods.
    job = DemoJob("job", min=2, max=2, epochs=8, step_seconds=0.25)
    newcomer = _newcomer("newcomer", 3, epochs=1)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 2, "job trains")
    await stage.edit(job, {"elasticPolicy": {"maxReplicas": 4}})
    await stage.until(lambda: stage.world(job) == 4, "job trains with more than its first max")
    pid = stage.training(job)["pid"]
    os.kill(pid, signal.SIGKILL)
    await stage.until(
        lambda: stage.training(job)["pid"] != pid and stage.training(job)["range"]["max"] == 4,
        "another coordinator, started with worker 0's environment, is told the range too",
    )
    await stage.edit(job, {"elasticPolicy": {"minReplicas": 1}})
    await stage.submit(newcomer)
    await stage.until(
        lambda: stage.worlds(job)[-1:] == [1], "job trains with less than its first min"
    )
    await stage.until(lambda: stage.world(newcomer) == 3, "newcomer trains beside it")
    await stage.steps_on(job)
    stage.hurry(newcomer)
    await stage.until(lambda: stage.finished(newcomer), "newcomer finishes")
    await _every_sample_once(stage, job)


async def test_a_jobs_killed_processes_come_back_one_after_the_other(stage: Stage) -> None:
    job = _job("job", 2, 2, epochs=8, step_seconds=0.2)
    await stage.submit(job)
    await stage.until(lambda: stage.world(job) == 2, "job trains")

    def worker(index: str) -> int:
        found = stage.training(job)["pids"].get(index) or [0]
        return int(found[0])

    for index in ("1", "0"):
        await stage.steps_on(job)
        await stage.until(lambda i=index: worker(i), "the worker is linked")  # type: ignore[misc]
        pid = worker(index)
        os.kill(pid, signal.SIGKILL)
        await stage.until(
            lambda i=index, p=pid: worker(i) not in (0, p),  # type: ignore[misc]
            f"another worker {index} trains",
        )
    await stage.steps_on(job)
    pid = stage.training(job)["pid"]
    os.kill(pid, signal.SIGKILL)
    await stage.until(lambda: stage.training(job)["pid"] != pid, "another coordinator answers")
    await stage.steps_on(job)
    assert not stage.finished(job), "it was killed while it trained"
    await _every_sample_once(stage, job)


async def test_killed_control_programs_lose_and_duplicate_nothing(stage: Stage) -> None:
    job = _job("job", 1, 4, epochs=8, step_seconds=0.15)

    def kill(program: str) -> None:
        os.kill(stage.cluster.processes[program], signal.SIGKILL)

    await stage.submit(job)
    # At once, so that it dies between the writes of the job's start.
    await stage.until(lambda: stage.recorder.timeline.of("job"), "the first pod appears")
    kill("operator")
    await stage.until(lambda: len(stage.recorder.timeline.of("job")) > 1, "the next pod appears")
    kill("scheduler")
    await stage.until(lambda: stage.world(job) == 4, "job still grows to 4")
    for program in ("operator", "scheduler"):
        kill(program)
        await stage.steps_on(job)
    assert not stage.finished(job), "they were killed while it trained"
    await _every_sample_once(stage, job)
    uids = {pod.name: uid for uid, pod in stage.recorder.timeline.pods.items()}
    assert sorted(uids) == [f"job-worker-{i}" for i in range(4)]
    assert len(stage.recorder.timeline.pods) == 4, "no pod was made twice"


async def test_what_no_schema_can_refuse_fails_with_the_path(stage: Stage) -> None:
    manifest = _job("wrong", 1, 2, epochs=1, step_seconds=0).manifest(stage.out)
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["name"] = "main"
    await stage.recorder.jobs.client.create(PYTORCHJOBS, manifest)
    await stage.until(lambda: "wrong" in stage.recorder.timeline.finished, "it is refused")
    job = await stage.recorder.jobs.client.get(PYTORCHJOBS, "wrong", "default")
    failed = next(c for c in job["status"]["conditions"] if c["type"] == "Failed")
    assert "spec.pytorchReplicaSpecs" in failed["message"]
    pods = await stage.recorder.jobs.client.list(PODS, "default")
    assert pods["items"] == []
