"""A page that is served in this process, of a world that tests write down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from tests.queue_policy.world import NOW, job, node, pods, world
from volcano_elastic.dashboard.chronicle import Chronicle
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.page_feed import PageFeed
from volcano_elastic.dashboard.server import Server, Sources, serving
from volcano_elastic.queue_policy.plan import plan

TOKEN = "t" * 32
A = job("a", 1, 6, 2)
SPENT = {"productive_training": 900_000, "hang": 100_000}
OBJECT: dict[str, Any] = {
    "metadata": {"name": "a"},
    "status": {"elastic": {"goodput": {"milliseconds": SPENT}, "speeds": {"1": 10.0, "2": 18.0}}},
}
LATER = NOW + timedelta(seconds=10)
SNAPSHOT = world([node("n", 4)], [A, job("huge", 9, 9)], pods(A, "n", "n"))


@dataclass
class Opened:
    url: str
    session: aiohttp.ClientSession
    feed: PageFeed
    chronicle: Chronicle
    tokens: set[str]
    asked: list[str]
    """Jobs whose details were asked for."""
    description: dict[str, Any] = field(default_factory=dict)
    """Details of any job."""

    async def get(self, path: str, **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
        given = {"Authorization": f"Bearer {TOKEN}"} | headers
        async with self.session.get(self.url + path, headers=given) as answer:
            return answer.status, await answer.read(), answer.headers

    async def json(self, path: str) -> Any:
        status, body, _ = await self.get(path)
        assert status == 200, body
        return json.loads(body)

    def show(self, seconds: int, held: int, since: datetime = NOW) -> None:
        """Show the cluster with so many of a's workers bound."""
        snapshot = replace(SNAPSHOT, pods=pods(A, *["n"] * held))
        now = since + timedelta(seconds=seconds)
        page = Page(snapshot, plan(snapshot, NOW), now)
        self.chronicle.page(page)
        self.feed.show(page)


@asynccontextmanager
async def opened(
    tmp_path: Path, *, beat: float = 15.0, clock: Callable[[], datetime] = lambda: LATER
) -> AsyncIterator[Opened]:
    """Yields a page that nothing was shown on yet."""
    description: dict[str, Any] = {}
    history = History(f"sqlite:///{tmp_path / 'page.db'}")
    feed, tokens, asked = PageFeed(), {TOKEN}, list[str]()
    chronicle = Chronicle(history, clock, timedelta(days=7))

    async def details(key: str) -> tuple[Mapping[str, Any] | None, Sequence[dict[str, Any]]]:
        asked.append(key)
        return description or None, [
            {"reason": "NodeLost", "message": "gone", "lastTimestamp": "2026"}
        ]

    sources = Sources(
        feed=feed,
        chronicle=chronicle,
        accepts=tokens.__contains__,
        job=lambda key: OBJECT if key == "ns/a" else None,
        details=details,
        waits_for=lambda: "" if feed.page else "pods",
        clock=clock,
    )
    try:
        async with (
            serving(Server(sources, beat=beat), "127.0.0.1", 0, ()) as port,
            aiohttp.ClientSession() as session,
        ):
            url = f"http://127.0.0.1:{port}"
            yield Opened(url, session, feed, chronicle, tokens, asked, description)
    finally:
        history.close()
