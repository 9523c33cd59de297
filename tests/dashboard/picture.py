"""Draws the README's picture of the page: `python -m tests.dashboard.picture`, three minutes.

Three queues share four nodes of eight GPUs, whose pods only pretend to run; jobs come and go.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from embedded_cluster.cluster import LocalCluster
from tests.dashboard.browser import chromium
from volcano_elastic.cli.dashboard import describe
from volcano_elastic.dashboard.program import Options, dashboard
from volcano_elastic.dashboard.token_list import TokenList
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import PYTORCHJOBS, QUEUES, Object

GPU = "nvidia.com/gpu"
PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "page.png"
DESERVED = {"language": 12, "search": 4, "vision": 16}
STORY: tuple[tuple[float, str, str, int, int], ...] = (
    # Seconds that all stays as it was, then: job, queue, min, max; 0: it is deleted.
    (0, "bert", "language", 2, 12),
    (0, "vit", "vision", 2, 16),
    (25, "ranker", "search", 1, 8),
    (30, "gpt", "language", 4, 12),
    (30, "big", "vision", 40, 40),
    (15, "vit", "vision", 0, 0),
    (60, "", "", 0, 0),
)


def queue(name: str, deserved: int) -> Object:
    spec = {"weight": 1, "reclaimable": True, "deserved": {GPU: str(deserved)}}
    return {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": name}} | {
        "spec": spec
    }


def job(name: str, queue: str, low: int, high: int) -> Object:
    container = {"name": "pytorch", "image": "train:1", "resources": {"limits": {GPU: 1}}}
    elastic = {"minReplicas": low, "maxReplicas": high, "cooldownSeconds": 5}
    return {
        "apiVersion": PYTORCHJOBS.api_version,
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "elasticPolicy": elastic,
            "runPolicy": {"schedulingPolicy": {"queue": queue}},
            "pytorchReplicaSpecs": {
                "Worker": {"replicas": low, "template": {"spec": {"containers": [container]}}}
            },
        },
    }


async def play(client: Client) -> None:
    for name, deserved in DESERVED.items():
        await client.create(QUEUES, queue(name, deserved))
        status = {"status": {"state": "Open"}}
        await client.patch(QUEUES, name, None, status, subresource="status")
    for seconds, name, of_queue, low, high in STORY:
        await asyncio.sleep(seconds)
        if high:
            await client.create(PYTORCHJOBS, job(name, of_queue, low, high))
        elif name:
            await client.delete(PYTORCHJOBS, name, "default")


async def draw(file: Path, width: int, height: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenList(lambda: datetime.now(UTC))
        options = Options(database=f"sqlite:///{folder}/page.db")
        async with (
            LocalCluster(nodes=4, gpus_per_node=8, kubelet="fake") as cluster,
            cluster.client() as client,
            dashboard(client, tokens, options, describe) as address,
            chromium() as tab,
        ):
            await play(client)
            await tab.look(width, height)
            await tab.open(address)
            await tab.until("document.querySelectorAll('table').length >= 3", "all of the page")
            await asyncio.sleep(2.0)  # pictures are drawn when they are asked for
            await tab.screenshot(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=PICTURE)
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels")
    parser.add_argument("--height", type=int, default=1400)
    given = parser.parse_args()
    asyncio.run(draw(given.file, given.width, given.height))


if __name__ == "__main__":
    main()
