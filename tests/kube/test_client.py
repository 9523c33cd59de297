"""The API client, and answers that no API server gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import PODS, Object
from volcano_elastic.operator.queue_plugin import watch_queue_plugin

POD: Object = {"metadata": {"name": "a", "namespace": "default"}}
EMPTY = b'{"items": [], "metadata": {"resourceVersion": "1"}}'
# Of a proxy in between, cut off, or of something else that listens there.
UNREADABLE = [b"\x1f\x8b<html>", b'{"metadata": {"na', b"", b"[]", b'"ok"', b'{"ok": true}']


@asynccontextmanager
async def answering(*answers: bytes | int, then: bytes | int) -> AsyncIterator[Client]:
    """Bodies, or codes of refusals; one a request, `then` ever after."""
    left = list(answers)

    async def answer(request: web.BaseRequest) -> web.Response:
        found = left.pop(0) if left else then
        if isinstance(found, int):
            return web.Response(status=found)
        return web.Response(body=found, content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        access = Access(f"http://127.0.0.1:{runner.addresses[0][1]}", {}, None)
        async with Client(access) as client:
            yield client
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("body", UNREADABLE)
async def test_an_answer_that_cannot_be_read_is_a_broken_connection(body: bytes) -> None:
    async with answering(then=body) as client:
        for asked in (
            client.list(PODS),
            client.get(PODS, "a", "default"),
            client.create(PODS, POD),
            client.replace(PODS, POD),
            client.patch(PODS, "a", "default", {}),
        ):
            with pytest.raises(aiohttp.ClientPayloadError, match=r"pods.*: expected .*, found b'"):
                await asked


@pytest.mark.parametrize("body", UNREADABLE[:2] + UNREADABLE[3:])
async def test_a_watch_goes_on_after_an_event_that_cannot_be_read(body: bytes) -> None:
    added = b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "2"}}}\n'
    async with answering(EMPTY, body + b"\n", then=added) as client:
        informer = Informer(client, PODS)
        watching = asyncio.create_task(informer.run())
        try:
            async with asyncio.timeout(120):
                while informer.get("a") is None:
                    assert not watching.done()
                    await asyncio.sleep(0.01)
        finally:
            watching.cancel()


async def test_a_watch_that_always_expires_is_not_begun_in_a_hot_loop() -> None:
    expired = b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n'
    lists = [EMPTY, expired] * 500
    async with answering(*lists, then=500) as client:
        informer = Informer(client, PODS)
        watching = asyncio.create_task(informer.run())
        async with asyncio.timeout(120):
            while "410" not in informer.failure:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        watching.cancel()
        assert informer.lists <= 10


async def test_a_refusal_without_a_status_is_an_api_error() -> None:
    async with answering(then=502) as client:
        with pytest.raises(ApiError, match="502"):
            await client.list(PODS)


@pytest.mark.parametrize("first", [500, 429, b"<html>"])
async def test_an_api_server_that_stumbles_withholds_nothing(first: bytes | int) -> None:
    async with answering(first, then=b'{"metadata": {}}') as client:
        watching = asyncio.create_task(watch_queue_plugin(client, lambda proportion: None))
        done, _ = await asyncio.wait({watching}, timeout=0.3)
        watching.cancel()
        assert not done


async def test_what_may_not_be_read_is_not_watched() -> None:
    async with answering(then=403) as client:
        async with asyncio.timeout(120):
            await watch_queue_plugin(client, lambda proportion: None)
