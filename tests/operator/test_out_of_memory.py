"""A pod that ran out of memory, under a real operator: what it got outlives whoever gave it."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.operator.process import Object, job
from tests.operator.test_operator import Scene, scene
from tests.patience import eventually
from volcano_elastic.api import moment
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS

pytestmark = pytest.mark.process
NAME = "a-worker-1"


async def asks_for(s: Scene, amount: str, *, but: str) -> Object | None:
    """The pod, if it runs with so much memory and is another than `but`, a uid."""
    for pod in (await s.client.list(PODS, "default"))["items"]:
        resources = pod["spec"]["containers"][0]["resources"]
        memory = (resources["requests"].get("memory"), resources["limits"].get("memory"))
        found: Object = pod
        if (pod["metadata"]["name"], memory) == (NAME, (amount, amount)) and (
            pod["metadata"]["uid"] != but and pod["status"].get("phase") == "Running"
        ):
            return found
    return None


async def test_more_memory_outlives_the_operator_that_gave_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        wanted = job("a", 2, 2)
        container = wanted["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"][
            "containers"
        ][0]
        container["resources"]["limits"]["memory"] = "1Gi"
        await s.client.create(PYTORCHJOBS, wanted)
        await s.wait_for_size("a", 2)
        first = await s.client.get(PODS, NAME, "default")
        ended = {
            "exitCode": 137,
            "reason": "OOMKilled",
            "finishedAt": moment.timestamp(datetime.now(UTC)),
        }
        again = {"running": {"startedAt": moment.timestamp(datetime.now(UTC))}}
        told = {"name": "pytorch", "restartCount": 1, "state": again}
        await s.nodes.patch(
            NAME, {"containerStatuses": [told | {"lastState": {"terminated": ended}}]}
        )
        second = await eventually(
            lambda: asks_for(s, "2Gi", but=first["metadata"]["uid"]), "it has twice as much"
        )
        status = await s.status("a")
        assert status["elastic"]["memory"] == {NAME: "2Gi"}
        assert not status["elastic"]["restarts"]
        assert "OutOfMemory" in {e["reason"] for e in await s.events("a")}

        await s.operator.stop(signal.SIGKILL)
        await s.client.delete(PODS, NAME, "default", grace_period_seconds=0)
        await s.operator.start()
        await eventually(
            lambda: asks_for(s, "2Gi", but=second["metadata"]["uid"]), "its successor has too"
        )
