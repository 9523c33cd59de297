"""Measures what the page costs: a look at a large cluster, and viewers.

    python -m benchmarks.dashboard [--jobs N --pods N --nodes N] [--viewers N] [--seconds N]

`look` is one look after a pod changed, in milliseconds of CPU: the plan, the page's model, and the
frame that all viewers are sent. `serving` is the CPU of the server beside its looks, as a share of
a core: each viewer holds a stream, and asks each 2 s for the picture, the changes and a page of
jobs. The dashboard is a process of its own: the operator has no part in any of it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from benchmarks.planner import NOW, cluster
from volcano_elastic.dashboard.chronicle import Chronicle
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.page_feed import PageFeed
from volcano_elastic.dashboard.server import Server, Sources, serving
from volcano_elastic.kube.resource import Object
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.snapshot.snapshot import Snapshot

_EVERY_SECONDS = 2.0
_VIEWERS = """
import asyncio, sys, aiohttp
url, viewers = sys.argv[1], int(sys.argv[2])
headers = {"Authorization": "Bearer x"}
async def watch(session):
    async with session.get(url + "api/stream", headers=headers) as stream:
        async for chunk in stream.content.iter_any():
            pass
async def ask(session):
    while True:
        for path in ("timeline?seconds=3600", "changes?seconds=3600", "jobs?page=3"):
            async with session.get(url + "api/" + path, headers=headers) as answer:
                await answer.read()
        await asyncio.sleep(2)
async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        views = [view(session) for view in (watch, ask) for _ in range(viewers)]
        await asyncio.gather(*views)
asyncio.run(main())
"""


class _Looks:
    """Looks at a cluster in which a pod changes each time, a second later."""

    def __init__(self, snapshot: Snapshot, feed: PageFeed, chronicle: Chronicle) -> None:
        self._snapshot, self._feed, self._chronicle = snapshot, feed, chronicle
        self._planner, self._number = Planner(), 0
        self._page: Page | None = None

    def look(self) -> float:
        """Return the CPU that it took, in seconds."""
        began = time.process_time()
        changed = replace(self._snapshot.pods[0], running=self._number % 2 == 0)
        pods = (changed, *self._snapshot.pods[1:])
        snapshot = replace(self._snapshot, pods=pods)
        now = NOW + timedelta(seconds=self._number)
        page = Page(snapshot, self._planner.plan(snapshot, now), now, self._page)
        self._chronicle.page(page)
        self._feed.show(page)
        self._page, self._number = page, self._number + 1
        return time.process_time() - began


async def measure(snapshot: Snapshot, viewers: int, seconds: float) -> str:
    """Return the figures as a line."""
    with tempfile.TemporaryDirectory() as folder:
        history = History(f"sqlite:///{Path(folder) / 'page.db'}")
        chronicle = Chronicle(history, lambda: NOW + timedelta(minutes=30), timedelta(days=7))
        feed = PageFeed()
        looks = _Looks(snapshot, feed, chronicle)
        for _ in range(3):
            looks.look()

        async def details(key: str) -> tuple[None, Sequence[Object]]:
            return None, ()

        sources = Sources(
            feed=feed,
            chronicle=chronicle,
            accepts=lambda token: True,
            job=lambda key: None,
            details=details,
            waits_for=lambda: "",
            clock=lambda: NOW + timedelta(minutes=30),
        )
        async with serving(Server(sources), "127.0.0.1", 0, ()) as port:
            watching = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _VIEWERS, f"http://127.0.0.1:{port}/", str(viewers))
            )
            try:
                await asyncio.sleep(3)
                taken: list[float] = []
                cpu, began = time.process_time(), time.monotonic()
                while time.monotonic() - began < seconds:
                    taken.append(looks.look())
                    await asyncio.sleep(_EVERY_SECONDS)
                serving_cpu = time.process_time() - cpu - sum(taken)
                share = serving_cpu / (time.monotonic() - began)
            finally:
                watching.kill()
                await watching.wait()
        history.close()
    taken.sort()
    return (
        f"look {1000 * taken[len(taken) // 2]:.0f} ms (median of {len(taken)}), frame "
        f"{len(feed.frame):,} bytes, serving {viewers} viewers {100 * share:.1f} % of a core"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=2_000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    snapshot = cluster(given.jobs, given.pods, given.nodes, "newcomer")
    print(asyncio.run(measure(snapshot, given.viewers, given.seconds)))


if __name__ == "__main__":
    main()
