"""Holders of the job's token alone are answered, whatever kind of call they make."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.protocol.guarded_server import guarded_server

from benchmarks.endpoint import free_endpoint

LOG = logging.getLogger(__name__)
TOKEN = "token-of-this-job"


async def echo(request: bytes, context: Any) -> bytes:
    return request


@asynccontextmanager
async def served(port: int) -> AsyncIterator[Any]:
    """A call that is no stream."""
    server = guarded_server(("127.0.0.1", port), TOKEN, LOG, options=(), most_calls=8)
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.unary_unary("/Test/Echo")
    finally:
        await server.stop(None)


@pytest.mark.parametrize("metadata", [(), ((HEADER, "another"),)])
async def test_a_single_call_without_the_token_is_refused(
    metadata: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with served(free_endpoint()) as call:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"text", metadata=metadata, timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert TOKEN not in str(refused.value)
        assert len([r for r in caplog.records if r.name == __name__]) == 1, "said once"
        assert await call(b"text", metadata=((HEADER, TOKEN),), timeout=60) == b"text"


async def test_a_second_server_on_its_address_fails() -> None:
    port = free_endpoint()
    async with served(port):
        with pytest.raises(OSError, match="cannot bind"):
            guarded_server(("127.0.0.1", port), TOKEN, LOG, options=(), most_calls=8)


async def test_nobody_else_can_reach_a_server_without_a_token() -> None:
    with pytest.raises(PermissionError, match="VOLCANO_ELASTIC_TOKEN"):
        guarded_server(("0.0.0.0", free_endpoint()), "", LOG, options=(), most_calls=8)
