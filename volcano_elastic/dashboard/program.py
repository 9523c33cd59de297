"""Puts the parts of the dashboard together: observes, writes down, serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.dashboard.chronicle import Chronicle
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.dashboard.model.page import Page
from volcano_elastic.dashboard.observer import Observer
from volcano_elastic.dashboard.page_feed import PageFeed
from volcano_elastic.dashboard.server import Server, Sources, serving
from volcano_elastic.dashboard.token_list import TokenList
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.resource import EVENTS, Object

_log = logging.getLogger(__name__)
Describe = Callable[[Client, str], Awaitable[Mapping[str, Any] | None]]
"""Returns what `volcano-elastic describe --json` says of the job with this key."""


@dataclass(frozen=True, slots=True)
class Options:
    database: str
    """URL of the history."""
    keep: timedelta = timedelta(days=7)
    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    """Other host names under which the page is reached."""
    plugin: str | None = None
    other_jobs: tuple[str, ...] = ()
    """Kinds of other jobs that the operator sizes."""
    kueue: bool = False


@asynccontextmanager
async def dashboard(
    client: Client, tokens: TokenList, options: Options, describe: Describe
) -> AsyncIterator[str]:
    """Yields the page's address, and serves it until the block ends.

    Raises:
        DatabaseError: the database's URL makes no sense.
        OSError: the address can't be listened on.
    """
    history = History(options.database)
    try:
        chronicle = Chronicle(history, _now, options.keep)
        feed = PageFeed()

        def show(page: Page) -> None:
            chronicle.page(page)
            feed.show(page)

        observer = Observer(
            client,
            _now,
            told=chronicle.changed,
            recorded=chronicle.recorded,
            shown=show,
            plugin=options.plugin,
            adapters=[one for one in ADAPTERS if one.kind in options.other_jobs],
            kueue=options.kueue,
        )
        sources = Sources(
            feed=feed,
            chronicle=chronicle,
            accepts=tokens.accepts,
            job=observer.job,
            details=lambda key: _details(client, key, describe),
            waits_for=lambda: observer.waits_for,
            clock=_now,
        )
        server = serving(Server(sources), options.host, options.port, options.names)
        async with server as port:
            working = [asyncio.create_task(part.run()) for part in (observer, chronicle)]
            for task in working:
                task.add_done_callback(_say_failure)
            try:
                host = f"[{options.host}]" if ":" in options.host else options.host
                made = f"#token={tokens.made}" if tokens.made else ""
                yield f"http://{host}:{port}/{made}"
            finally:
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)
    finally:
        history.close()


def _now() -> datetime:
    return datetime.now(UTC)


def _say_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the page is not kept current any more", exc_info=error)


async def _details(
    client: Client, key: str, describe: Describe
) -> tuple[Mapping[str, Any] | None, Sequence[Object]]:
    namespace, _, name = key.partition("/")
    selector = f"involvedObject.kind=PyTorchJob,involvedObject.name={name}"

    async def events() -> Sequence[Object]:
        listed = await client.list(EVENTS, namespace, field_selector=selector)
        found: Sequence[Object] = listed["items"]
        return found

    async def told() -> Mapping[str, Any] | None:
        return await describe(client, key)

    first, second = await asyncio.gather(told(), events(), return_exceptions=True)
    description = None if isinstance(first, BaseException) else first
    about = () if isinstance(second, BaseException) else second
    for found in (first, second):
        if isinstance(found, BaseException) and not isinstance(
            found, ApiError | aiohttp.ClientError | TimeoutError | OSError
        ):
            raise found
    return description, about
