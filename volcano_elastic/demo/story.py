"""The course of the demo, from the first job to the table at the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from embedded_cluster.cluster import LocalCluster
from volcano_elastic.dashboard.program import Describe, Options, dashboard
from volcano_elastic.dashboard.token_list import TokenList
from volcano_elastic.demo.machine_speed import measure_start, slowness
from volcano_elastic.demo.picture import draw
from volcano_elastic.demo.recorder import Recorder
from volcano_elastic.demo.training import (
    SAMPLES,
    BrokenPromise,
    DemoJob,
    TrainingResult,
    judge,
    train_alone,
)
from volcano_elastic.demo.view import View
from volcano_elastic.kube.resource import PYTORCHJOBS

NODES, GPUS_PER_NODE = 2, 2
GPUS = NODES * GPUS_PER_NODE
A = DemoJob("a", min=1, max=4, epochs=7, step_seconds=0.06)
B = DemoJob("b", min=2, max=4, epochs=11, step_seconds=0.06)
PAGE_DATABASE = "page.db"
MAX_WAIT = 10.0
"""Seconds: a newcomer whose first pod runs later than this has waited.

This limit and those of the demo's course are for a machine like the one of machine_speed; on a
slower one all are multiplied by what that measures.
"""


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the SIGKILL of a worker process, in seconds."""

    survivors: float
    """Until the job made a step again."""
    whole: float
    """Until it did so with as many workers as before."""


async def play(out: Path, console: Console, describe: Describe) -> None:
    """Runs the demo and prints its table; writes report.json and gpus.png into `out`. The page,
    whose address it prints, is there until the training is over.

    Args:
        describe: for the page, what is known of a job.

    Raises:
        BrokenPromise: something the demo promises did not hold.
    """
    view = View(console)
    slow = slowness(await measure_start())
    if slow > 1:
        view.say(f"this machine is slow or busy: it gets {slow:.1f} times the time")
    view.say("starting the embedded cluster: API server, scheduler, kubelet, operator")
    tokens = TokenList(lambda: datetime.now(UTC))
    options = Options(database=f"sqlite:///{out / PAGE_DATABASE}")
    async with (
        LocalCluster(nodes=NODES, gpus_per_node=GPUS_PER_NODE, kubelet="process") as cluster,
        cluster.client() as client,
        dashboard(client, tokens, options, describe) as page,
    ):
        view.say(f"the page, while the demo runs: {page}")
        recorder = Recorder(client, view.say)
        watching = [asyncio.create_task(recorder.run()), asyncio.create_task(view.run(recorder))]
        try:
            await recorder.nodes.synced.wait()
            # Pods that take longer to start must still find the other job training.
            jobs = [replace(job, step_seconds=job.step_seconds * slow) for job in (A, B)]
            recovery = await _course(recorder, jobs[0], jobs[1], out, slow)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
    view.say("counting samples, and training the same two models on one fixed worker each")
    a, b, a_alone, b_alone = await asyncio.gather(
        judge(A, out, slow),
        judge(B, out, slow),
        train_alone(A, out, slow),
        train_alone(B, out, slow),
    )
    results = {"a": a, "b": b}
    _report(recorder, results, {"a": a_alone, "b": b_alone}, recovery, out, console)
    _check_promises(recorder, results, slow)


async def _course(recorder: Recorder, a: DemoJob, b: DemoJob, out: Path, slow: float) -> Recovery:
    timeline = recorder.timeline

    async def until(
        holds: Callable[[], bool], limit: float, promise: str, *running: DemoJob
    ) -> None:
        await _until(recorder, holds, limit * slow, promise, running)

    async def submit(job: DemoJob) -> None:
        job.folder(out).mkdir(parents=True, exist_ok=True)
        timeline.submitted[job.name] = recorder.now()
        await recorder.jobs.client.create(PYTORCHJOBS, job.manifest(out))
        recorder.mark(f"{job.name} arrives")

    def world(job: DemoJob) -> int:
        status = recorder.training.get(job.name, {})
        return int(status.get("world") or 0) if status.get("phase") == "running" else 0

    await submit(a)
    await until(lambda: world(a) == 4, 60, "a grows into the idle GPUs, to 4 workers", a)
    await asyncio.sleep(3)
    await submit(b)
    await until(
        lambda: world(a) == 2 and world(b) == 2,
        40,
        "a shrinks to 2 and b trains with its minimum of 2",
        *(a, b),
    )
    await asyncio.sleep(3)
    recovery = await _kill_worker(recorder, b, 30 * slow)
    await until(lambda: "a" in timeline.finished, 60, "a finishes")
    if "b" not in timeline.finished:
        await until(lambda: world(b) == 4, 30, "b grows to 4 once a is gone")
    await until(lambda: "b" in timeline.finished, 60, "b finishes")
    return recovery


async def _kill_worker(recorder: Recorder, job: DemoJob, limit: float) -> Recovery:
    """SIGKILLs the training process of the job's last worker and times the way back."""
    before = recorder.training[job.name]
    index, pid = max((int(index), pids[0]) for index, pids in before["pids"].items())
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    recorder.mark(f"SIGKILL of {job.name}'s worker {index}")

    def again(whole: bool) -> float | None:
        """The time of the first step in a round after the kill, by the coordinator's clock."""
        for record in recorder.training[job.name]["rounds"]:
            stepped = record["round"] > before["round"] and record["first_step_time"] is not None
            if stepped and (record["world"] >= before["world"] or not whole):
                return float(record["first_step_time"])
        return None

    what = f"{job.name} trains on with all its workers after the SIGKILL of one"
    await _until(recorder, lambda: again(whole=True) is not None, limit, what)
    first, all_of_them = again(whole=False), again(whole=True)
    assert first is not None and all_of_them is not None
    return Recovery(first - killed, all_of_them - killed)


async def _until(
    recorder: Recorder,
    holds: Callable[[], bool],
    limit: float,
    promise: str,
    running: Sequence[DemoJob] = (),
) -> None:
    """Returns once `holds`.

    Args:
        running: jobs without which it can't hold.

    Raises:
        BrokenPromise: after `limit` seconds, or if a job failed, or one of `running` is over.
    """
    deadline = recorder.now() + limit
    while not holds():
        for job, (_, how) in recorder.timeline.finished.items():
            if how == "Failed":
                raise BrokenPromise(f"both jobs succeed: job {job} failed (see its pods' logs)")
        over = [job.name for job in running if job.name in recorder.timeline.finished]
        if over and not holds():
            raise BrokenPromise(
                f"{promise}: {' and '.join(over)} had finished before; the machine's speed has "
                "changed since it was measured, so try again when it does less"
            )
        if recorder.now() > deadline:
            raise BrokenPromise(f"{promise}: not within {limit:.0f} s")
        await asyncio.sleep(0.05)


def _span(recorder: Recorder) -> tuple[float, float]:
    """From the first running pod to the end of the last job."""
    timeline = recorder.timeline
    starts = [pod.running for pod in timeline.pods.values() if pod.running is not None]
    return min(starts), max(when for when, _ in timeline.finished.values())


def _report(
    recorder: Recorder,
    results: dict[str, TrainingResult],
    alone: dict[str, float],
    recovery: Recovery,
    out: Path,
    console: Console,
) -> None:
    timeline = recorder.timeline
    start, end = _span(recorder)
    table = Table(title="What the run measured")
    table.add_column()
    for job in (A, B):
        table.add_column(f"job {job.name}, {job.min} to {job.max} GPUs", justify="right")

    def row(name: str, value: Callable[[DemoJob], str]) -> None:
        table.add_row(name, value(A), value(B))

    def sizes(job: DemoJob) -> str:
        changes = [change for change in timeline.changes if change.job == job.name]
        return " → ".join(str(n) for n in [job.min, *(change.new for change in changes)])

    row("waited for its first pod", lambda j: f"{timeline.wait_for_first_pod(j.name):.2f} s")
    row(
        "waited for its minimum",
        lambda j: f"{timeline.wait_for_minimum(j.name, j.min) or 0:.2f} s",
    )
    row("sizes", sizes)
    row(
        "changes of size",
        lambda j: str(sum(change.job == j.name for change in timeline.changes)),
    )
    row("took", lambda j: f"{timeline.finished[j.name][0] - timeline.submitted[j.name]:.1f} s")

    def seen(job: DemoJob) -> str:
        result = results[job.name]
        total = result.epochs * SAMPLES
        return f"{total - result.lost - result.repeated:,} of {total:,}"

    row("samples seen exactly once", seen)
    row("  lost / repeated", lambda j: f"{results[j.name].lost} / {results[j.name].repeated}")
    row("  of steps lost and done again", lambda j: f"{results[j.name].undone:,}")
    row("test accuracy", lambda j: f"{results[j.name].accuracy:.2%}")
    row("  on one fixed worker", lambda j: f"{alone[j.name]:.2%}")
    table.add_section()
    utilisation = timeline.utilisation(GPUS, start, end)
    table.add_row("GPU utilisation, both jobs", f"{utilisation:.1%}", "")
    table.add_row("b's worker killed: b's next step", "", f"{recovery.survivors:.2f} s")
    table.add_row("  with all of its workers again", "", f"{recovery.whole:.2f} s")
    console.print(table)
    picture = out / "gpus.png"
    draw(timeline, gpus=GPUS, end=end, path=picture)
    report = {
        "gpu_utilisation": utilisation,
        "seconds": end - start,
        "recovery_seconds": asdict(recovery),
        "jobs": {
            job.name: {
                "wait_for_first_pod": timeline.wait_for_first_pod(job.name),
                "wait_for_minimum": timeline.wait_for_minimum(job.name, job.min),
                "changes": [asdict(c) for c in timeline.changes if c.job == job.name],
                **asdict(results[job.name]),
                "alone": alone[job.name],
            }
            for job in (A, B)
        },
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    console.print(f"picture: {picture}\nfigures: {out / 'report.json'}", soft_wrap=True)


def _check_promises(recorder: Recorder, results: dict[str, TrainingResult], slow: float) -> None:
    timeline = recorder.timeline
    for name, result in results.items():
        if result.lost or result.repeated:
            raise BrokenPromise(
                f"every sample exactly once: job {name} lost {result.lost}, "
                f"repeated {result.repeated}"
            )
    wait = timeline.wait_for_first_pod("b")
    if wait is None or wait > MAX_WAIT * slow:
        raise BrokenPromise(f"a newcomer starts at once: b's first pod ran after {wait} s")
    if not any(c.job == "a" and c.new < c.old for c in timeline.changes):
        raise BrokenPromise("surplus steps aside: a was never shrunk by the policy")
    if max((c.new for c in timeline.changes if c.job == "b"), default=0) < B.max:
        raise BrokenPromise("idle GPUs are used: b did not grow to 4 after a had finished")
    for name, (_, how) in timeline.finished.items():
        if how != "Succeeded":
            raise BrokenPromise(f"both jobs succeed: job {name} {how}")
