"""How Volcano divides among queues, which its scheduler's configuration says."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.patience import eventually
from volcano_elastic.kube.resource import CONFIGMAPS, NAMESPACES
from volcano_elastic.operator.queue_plugin import (
    CONFIGMAP,
    NAMESPACE,
    by_proportion,
    watch_queue_plugin,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("actions: a\ntiers:\n- plugins:\n  - name: gang\n  - name: proportion\n", True),
        ("tiers:\n- plugins:\n  - name: capacity\n", False),
        ("tiers: none", None),
        (": : :", None),
    ],
)
def test_the_schedulers_configuration_says_how_volcano_divides(
    text: str, found: bool | None
) -> None:
    assert by_proportion({"data": {"volcano-scheduler.conf": text}}) is found


def test_a_configmap_without_a_configuration_says_nothing() -> None:
    assert by_proportion({"data": {"other": "x"}}) is None
    assert by_proportion({}) is None


@pytest.mark.process
async def test_a_change_of_the_schedulers_configuration_is_told(tmp_path: Path) -> None:
    told: list[bool] = []

    def configuration(plugin: str) -> dict[str, str]:
        return {"volcano-scheduler.conf": f"tiers:\n- plugins:\n  - name: {plugin}\n"}

    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client:
            watching = asyncio.create_task(watch_queue_plugin(client, told.append))
            await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            meta = {"name": CONFIGMAP, "namespace": NAMESPACE}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            await client.create(CONFIGMAPS, body | {"data": configuration("proportion")})

            async def last(found: bool) -> bool:
                return told[-1:] == [found]

            await eventually(lambda: last(True), "proportion is told")
            patch = {"data": configuration("capacity")}
            await client.patch(CONFIGMAPS, CONFIGMAP, NAMESPACE, patch)
            await eventually(lambda: last(False), "capacity is told")
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
