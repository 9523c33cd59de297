"""E5, scaled down: ElasticDL's experiment of two jobs on one cluster, with real training processes.

There, 320 CPUs, jobs of at most 175, the second 300 s after the first, each 650 s alone. Here five
CPUs, jobs of at most three, and the same share of the time. Oracles (fluid, linear speed with a
cap): where the older job keeps its size, 2D - f/d (D - t) for D alone, f CPUs free beside d; where
the newer one gets its cap, t + D. One after the other would be 2D.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Promised
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.demo.training import SAMPLES, DemoJob
from volcano_elastic.kube.resource import PYTORCHJOBS, QUEUEPOLICIES, QUEUES

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]

CPUS, CAP = 5, 3
STEP_SECONDS = 0.2
LATER = 300 / 650
"""When the second job comes, as a share of what the first takes alone."""
NOISE = 4.0
"""Seconds that a busy machine may add."""


class CpuJob(DemoJob):
    def manifest(self, out: Path) -> dict[str, Any]:
        manifest = super().manifest(out)
        spec = manifest["spec"]
        spec["elasticPolicy"]["cooldownSeconds"] = 0
        spec["nprocPerNode"] = "1"
        container = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        container["resources"] = {"requests": {"cpu": 1}}
        return manifest


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """One node, and a queue of five CPUs whose jobs may grow at any time."""
    async with running(fresh_control_plane, tmp_path, nodes=1, gpus_per_node=0) as found:
        client = found.recorder.jobs.client
        capability = {"spec": {"capability": {"cpu": CPUS}}}
        await client.patch(QUEUES, "default", None, capability)
        policy = {
            "apiVersion": QUEUEPOLICIES.api_version,
            "kind": "QueuePolicy",
            "metadata": {"name": "default"},
            "spec": {"queue": "default", "resource": "cpu", "grow": {"cooldownSeconds": 0}},
        }
        await client.create(QUEUEPOLICIES, policy)
        yield found


@pytest.mark.parametrize("minimum", [1, CAP], ids=["fits-beside", "needs-room"])
async def test_makespan_is_the_oracles(
    stage: Stage, minimum: int, promised: Promised, request: pytest.FixtureRequest
) -> None:
    long = request.config.getoption("--long")
    epochs = 30 if long else 5
    first = CpuJob("first", 1, CAP, epochs, STEP_SECONDS)
    second = CpuJob("second", minimum, CAP, epochs, STEP_SECONDS)
    await stage.submit(first, lasts=not long)
    await stage.until(lambda: stage.world(first) == CAP, "the first job has its cap")
    began = stage.recorder.now()
    alone = epochs * SAMPLES / (CAP * 16 / STEP_SECONDS)
    later = LATER * alone if long else 0
    await stage.until(lambda: stage.recorder.now() >= began + later, "the second comes", 600)
    submitted = stage.recorder.now()
    await stage.submit(second, lasts=not long)
    wanted = CAP if minimum == CAP else CPUS - CAP
    await stage.until(lambda: stage.world(second) >= wanted, "the second job trains")
    started = stage.recorder.now() - submitted
    lowered = [c for c in stage.changes if c.reason == "ShrunkForMinimum" and c.job == "first"]
    assert bool(lowered) == (minimum == CAP), "surplus makes way only where it must"
    for job in () if long else (first, second):
        stage.hurry(job)  # so short a time beside each other says little
    await stage.until(lambda: stage.finished(first) and stage.finished(second), "both end", 900)
    assert {stage.finished(first), stage.finished(second)} == {"Succeeded"}, stage.story()
    if not long:
        return
    makespan = max(at for at, _ in stage.recorder.timeline.finished.values()) - began

    elastic = (await stage.recorder.jobs.client.get(PYTORCHJOBS, "first", "default"))["status"][
        "elastic"
    ]
    speed = elastic["speeds"][str(CAP)]
    alone = epochs * SAMPLES / speed
    free = CPUS - CAP
    oracle = later + alone if minimum == CAP else 2 * alone - free / CAP * (alone - later)
    pauses = sum(
        told.get("pause_seconds") or 0
        for job in (first, second)
        for told in stage.training(job)["rounds"]
    )
    print(
        f"E5: makespan {makespan:.1f} s, oracle {oracle:.1f} s, one after the other "
        f"{2 * alone:.1f} s; start of the second {started:.1f} s, pauses {pauses:.1f} s; "
        f"speeds {elastic['speeds']}"
    )
    promised("longer than the oracle", makespan - 1.03 * oracle - started - pauses, NOISE)
