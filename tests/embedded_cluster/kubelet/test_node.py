"""Virtual nodes in the API: there, alive, and back when they were taken for lost."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from embedded_cluster.kubelet import node
from tests.embedded_cluster.apiserver.process import ApiServerProcess
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import NODES

pytestmark = pytest.mark.process


async def test_a_node_taken_for_lost_says_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_RENEW_SECONDS", 0.02)
    with ApiServerProcess(tmp_path) as apiserver:
        async with apiserver.client() as client:
            await node.register(client, ["node-1"], 2)
            lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
            await client.patch(NODES, "node-1", None, lost, subresource="status")
            nodes = node.VirtualNodes(client, ["node-1"], 2)
            nodes.on_change(None, await client.get(NODES, "node-1"))
            alive = asyncio.create_task(nodes.run())
            try:
                async with asyncio.timeout(120):
                    await _ready(client)
            finally:
                alive.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await alive


async def test_a_node_has_the_gpus_that_it_was_registered_with_last(tmp_path: Path) -> None:
    with ApiServerProcess(tmp_path) as apiserver:
        async with apiserver.client() as client:
            for gpus in (2, 3, 0):
                await node.register(client, ["node-1"], gpus)
                status = (await client.get(NODES, "node-1"))["status"]
                for amounts in (status["capacity"], status["allocatable"]):
                    assert amounts.get("nvidia.com/gpu") == (str(gpus) if gpus else None)
                    assert amounts["cpu"] == "64"


async def _ready(client: Client) -> None:
    while True:
        status = (await client.get(NODES, "node-1"))["status"]
        if [c["status"] for c in status["conditions"] if c["type"] == "Ready"] == ["True"]:
            return
        await asyncio.sleep(0.02)
