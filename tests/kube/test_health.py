"""The probes' and metrics' server."""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from volcano_elastic.kube.health import serve
from volcano_elastic.kube.http_log import http_log

HOST = "127.0.0.1"


async def _answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request)
    try:
        return await reader.readline()
    finally:
        writer.close()


async def test_requests_that_are_no_http_are_refused_and_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve(HOST, 0, CollectorRegistry(), lambda: "") as port:
        assert b" 200 " in await _answer(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        for garbage in (b"\x16\x03\x01 no TLS here\r\n\r\n", b"GET / HTTP/9\r\n: \r\n\r\n"):
            assert b" 400 " in await _answer(port, garbage)
    assert caplog.records == []


async def test_it_is_ready_once_it_waits_for_nothing() -> None:
    waits = ["the pods"]
    async with serve(HOST, 0, CollectorRegistry(), lambda: "".join(waits)) as port:
        ask = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"
        assert b" 503 " in await _answer(port, ask)
        waits.clear()
        assert b" 200 " in await _answer(port, ask)


def test_what_fails_within_a_server_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        http_log("a.server").exception("Error handling request")
    assert [one.levelno for one in caplog.records] == [logging.ERROR]
