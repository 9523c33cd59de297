"""E6, as in ElasticDL's article: a service scaled by hand and by an autoscaler, a training job of
lower priority with real processes beside it. The service never waits longer than the grace, and
what it doesn't need trains."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Promised
from e2e.service import Service, service
from e2e.stage import Stage, running
from embedded_cluster.conformance.control_plane import ControlPlane
from volcano_elastic.demo.training import DemoJob
from volcano_elastic.kube.resource import PRIORITYCLASSES, QUEUEPOLICIES

pytestmark = pytest.mark.e2e

GPUS = 4
GRACE = 5.0
"""Seconds that leaving workers get; ours leave at a step boundary."""


class Training(DemoJob):
    """Training of lower priority, without a cooldown of its own."""

    def manifest(self, out: Path) -> dict[str, Any]:
        manifest = super().manifest(out)
        del manifest["spec"]["elasticPolicy"]["cooldownSeconds"]
        # How fast a few processes on this machine are beside others is not what is shown.
        manifest["spec"]["elasticPolicy"]["scaler"] = "none"
        manifest["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "training"}}
        return manifest


TRAIN = Training("train", min=1, max=GPUS, epochs=100_000, step_seconds=0.1)


@pytest.fixture
async def stage(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """Two nodes of two GPUs, and a job that trains on all of them."""
    async with running(fresh_control_plane, tmp_path) as found:
        client = found.recorder.jobs.client
        low = {"metadata": {"name": "training"}, "value": -100}
        await client.create(PRIORITYCLASSES, low)
        policy = {
            "apiVersion": QUEUEPOLICIES.api_version,
            "kind": "QueuePolicy",
            "metadata": {"name": "default"},
            "spec": {
                "queue": "default",
                "shrink": {"graceSeconds": GRACE},
                "grow": {"cooldownSeconds": 2},
            },
        }
        await client.create(QUEUEPOLICIES, policy)
        await found.submit(TRAIN)
        await found.until(lambda: found.world(TRAIN) == GPUS, "the job trains on all GPUs")
        yield found


class Use:
    """GPUs that train or serve, sampled ten times a second."""

    def __init__(self, stage: Stage, web: Service) -> None:
        self._stage, self._web = stage, web
        self._samples: list[float] = []

    async def sample(self) -> None:
        while True:
            used = self._stage.world(TRAIN) + self._web.running
            self._samples.append(min(used, GPUS) / GPUS)
            await asyncio.sleep(0.1)

    @property
    def share(self) -> float:
        return sum(self._samples) / len(self._samples)


DAY = 600.0
"""Seconds that the service's daily curve takes in the long form."""


def demand(at: float, day: float) -> int:
    """Pods of the service: a daily curve from 0 to 2, and two spikes to 3."""
    if any(abs(at / day - spike) < 0.03 for spike in (0.3, 0.75)):
        return GPUS - 1
    return 1 - round(math.cos(2 * math.pi * at / day))


async def daily_demand(stage: Stage) -> AsyncIterator[int]:
    """Yield how many pods the service takes, five times a second, for ten minutes."""
    began = stage.recorder.now()
    while (at := stage.recorder.now() - began) < DAY:
        yield demand(at, DAY)
        await asyncio.sleep(0.2)


async def shared(stage: Stage, web: Service, replicas: int) -> None:
    """So many pods serve, and the job trains on the rest."""
    await web.scale(replicas)
    await stage.until(lambda: web.running == replicas, f"{replicas} pods serve")
    await stage.until(lambda: stage.world(TRAIN) == GPUS - replicas, "the rest trains")
    await stage.steps_on(TRAIN)


def worker_0_stayed(stage: Stage) -> bool:
    return not any(p.told_to_leave for p in stage.recorder.timeline.of("train") if p.index == 0)


async def test_a_service_scaled_by_hand_waits_for_the_grace_at_most(
    stage: Stage, promised: Promised, request: pytest.FixtureRequest
) -> None:
    client = stage.recorder.jobs.client
    async with service(stage.plane, client) as web:
        use = Use(stage, web)
        sampling = asyncio.create_task(use.sample())
        if request.config.getoption("--long"):
            async for replicas in daily_demand(stage):
                await web.scale(replicas)
        else:
            for replicas in (1, GPUS - 1, 0, 2):
                await shared(stage, web, replicas)
        waits, share = web.waits(asyncio.get_running_loop().time()), use.share
        sampling.cancel()
        await web.scale(0)
        await stage.until(lambda: stage.world(TRAIN) == GPUS, "the job has all GPUs again")
    print(f"E6: {len(waits)} service pods, longest wait {max(waits):.2f} s, GPUs used {share:.1%}")
    promised("a pod of the service waits", max(waits), GRACE + 2)
    assert worker_0_stayed(stage)
    reasons = {c.reason for c in stage.changes if c.new < c.old}
    assert reasons == {"ShrunkForPod"}, "nobody else made room"
    if request.config.getoption("--long"):
        assert share > 0.9


async def test_a_service_scaled_by_an_autoscaler_waits_for_the_grace_at_most(
    stage: Stage, promised: Promised, request: pytest.FixtureRequest
) -> None:
    if stage.plane.name == "embedded":
        pytest.skip("nobody carries Deployments and autoscalers out here")
    async with service(stage.plane, stage.recorder.jobs.client) as web:
        web.load = 100
        await web.scale(1)
        await web.autoscale(GPUS - 1)
        telling = asyncio.create_task(web.tell_load())
        use = Use(stage, web)
        sampling = asyncio.create_task(use.sample())
        try:
            if request.config.getoption("--long"):
                async for pods in daily_demand(stage):
                    web.load = 100 * max(pods, 1)  # an autoscaler keeps one
            for load in (100, 300, 100):
                web.load = load
                await stage.until(lambda: web.running * 100 == web.load, f"{load} m are served")
                await stage.until(
                    lambda: stage.world(TRAIN) == GPUS - web.running, "the rest trains"
                )
                await stage.steps_on(TRAIN)
        finally:
            for task in (telling, sampling):
                task.cancel()
            await asyncio.gather(telling, sampling, return_exceptions=True)
        waits, share = web.waits(asyncio.get_running_loop().time()), use.share
    print(
        f"E6: {len(waits)} pods of an autoscaler, longest wait {max(waits):.2f} s, "
        f"GPUs used {share:.1%}"
    )
    assert len(waits) >= GPUS - 1
    promised("a pod of the service waits", max(waits), GRACE + 2)
    assert worker_0_stayed(stage)
    if request.config.getoption("--long"):
        assert share > 0.9
