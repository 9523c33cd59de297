"""Answers the liveness probe of a Brain that waits for the Lease: kopf does so only where it runs,
and Kubernetes would restart a second replica again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web

from volcano_elastic.kube.http_log import http_log


class UnusableAddress(Exception):
    """An address that can't be listened on; says which and why."""


@asynccontextmanager
async def alive(url: str | None) -> AsyncIterator[None]:
    """Serves `url` for as long as it is entered; nothing where it names no host and port.

    Raises:
        UnusableAddress: that can't be listened on.
    """
    found = urlsplit(url or "")
    if not found.hostname or not found.port:
        yield
        return

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="another replica leads")

    app = web.Application()
    app.add_routes([web.get(found.path or "/", answer)])
    runner = web.AppRunner(app, access_log=None, logger=http_log(__name__), shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, found.hostname, found.port).start()
        except OSError as error:
            raise UnusableAddress(f"{found.netloc}: {error.strerror}") from error
        yield
    finally:
        await runner.cleanup()
