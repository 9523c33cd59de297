"""The API client, and answers that no API server gives."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from volcano_elastic.kube.client import Client
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import PODS


async def test_an_answer_that_is_no_json_is_a_broken_connection() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"\x1f\x8b<html>", content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with Client(Access(f"http://127.0.0.1:{port}", {}, None)) as client:
            with pytest.raises(aiohttp.ClientPayloadError, match="expected JSON, found"):
                await client.list(PODS)
    finally:
        await runner.cleanup()
