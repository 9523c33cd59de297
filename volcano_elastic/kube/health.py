"""Serves /healthz, /readyz and /metrics for Kubernetes and Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from volcano_elastic.kube.http_log import http_log


@asynccontextmanager
async def serve(
    host: str, port: int, registry: CollectorRegistry, waits_for: Callable[[], str]
) -> AsyncIterator[int]:
    """`/healthz`, `/readyz` and `/metrics` on this event loop, so that one that hangs fails them.

    Args:
        port: 0 for any free one; yields the one it is.
        waits_for: what readiness still waits for; empty when nothing.

    Raises:
        OSError: the address can't be listened on.
    """

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(request: web.Request) -> web.Response:
        what = waits_for()
        return (
            web.Response(status=503, text=f"waiting for {what}")
            if what
            else web.Response(text="ok")
        )

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None, logger=http_log(__name__), shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
