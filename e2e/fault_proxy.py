"""Stands between the operator and the API server, and lets a seeded part of the requests fail."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp import web

_REFUSALS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}
# Bodies pass as they are, so what says how they are packed passes too.
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of requests, in 0..1, and of a watch's life in seconds."""

    failed: float = 0.05
    """Refused with 409, 429 or 500, or the connection is closed, before or after the API server
    did what was asked."""
    expired: float = 0.1
    """Share of watches that get 410 at once."""
    longest_watch: float = 3.0
    """Watches are cut after a random time up to this."""


NONE = Faults(0, 0, float("inf"))


class FaultProxy:
    """`async with proxy.serving(): proxy.url`; `faults` may be changed at any time.

    Args:
        tls: with the credentials of whoever comes through, where `target` knows users by those.
    """

    def __init__(
        self, target: str, faults: Faults, seed: int, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._target, self.faults, self._tls = target.rstrip("/"), faults, tls
        self._random = random.Random(seed)
        self.counted: Counter[str] = Counter()
        """Outcomes of requests, counted by name."""
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            auto_decompress=False, connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
        ) as session:
            self._session = session
            server = web.Server(self._handle, access_log=None, handler_cancellation=True)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        watch = request.query.get("watch") == "true"
        dice, kind = self._random.random(), self._random.choice([*_REFUSALS, "before", "after"])
        if watch:
            return await self._watch(request, expired=dice < self.faults.expired)
        if dice >= self.faults.failed:
            self.counted["passed"] += 1
            return await self._pass(request)
        self.counted[str(kind)] += 1
        if kind == "before":
            return self._cut(request)
        if kind == "after":
            # Done, but whoever asked never learns it.
            await self._pass(request)
            return self._cut(request)
        assert isinstance(kind, int)
        return _refused(kind, _REFUSALS[kind])

    async def _pass(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            async with self._forwarded(request) as answer:
                body = await answer.read()
                return web.Response(
                    status=answer.status,
                    body=body,
                    headers={
                        k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP
                    },
                )
        except aiohttp.ClientError:
            # The API server is away.
            return self._cut(request)

    async def _watch(self, request: web.BaseRequest, *, expired: bool) -> web.StreamResponse:
        if expired:
            self.counted["410"] += 1
            return _refused(410, "Expired")
        life = self.faults.longest_watch
        limit = None if life == float("inf") else self._random.uniform(0, life)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        with suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(limit), self._forwarded(request) as answer:
                if answer.status != 200:
                    return web.Response(status=answer.status, body=await answer.read())
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        self.counted["watch cut"] += 1
        return self._cut(request)

    def _forwarded(self, request: web.BaseRequest) -> aiohttp.client._RequestContextManager:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        return self._session.request(
            request.method,
            self._target + request.path_qs,
            headers=headers,
            data=request.content if request.body_exists else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=2),
        )

    def _cut(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        # aiohttp finds nobody to send it to.
        return web.Response()


def _refused(code: int, reason: str) -> web.Response:
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    headers = {"Content-Type": "application/json"} | ({"Retry-After": "0"} if code == 429 else {})
    body = orjson.dumps(status | {"message": "a fault of the test"})
    return web.Response(status=code, body=body, headers=headers)
