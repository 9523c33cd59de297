"""A small HTTP side: one request a connection, bounded in size, number and time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SECONDS = 5.0
"""For a request to come, and again for its answer to be taken."""
HEAD_BYTES = 16384
BODY_BYTES = 1024
CONNECTIONS = 64
"""At a time: one more, and the oldest is cut off. A request is read and answered within moments of
its connection, so that is one which asks nothing."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Without what follows a question mark."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Their names in lower case."""
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    code: str
    body: bytes
    content_type: str = "application/json"


Respond = Callable[[Request], Answer]


def json_answer(code: str, value: dict[str, Any]) -> Answer:
    return Answer(code, json.dumps(value).encode() + b"\n")


def text_answer(text: str) -> Answer:
    """Return an answer with metrics, as Prometheus reads them."""
    return Answer("200 OK", text.encode(), "text/plain; version=0.0.4; charset=utf-8")


async def serve_http(host: str, port: int, respond: Respond) -> asyncio.Server:
    """Answers what comes with `respond`, until the server is closed.

    Raises OSError if the address can't be bound.
    """
    connections: dict[asyncio.StreamWriter, None] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[writer] = None
        if len(connections) > CONNECTIONS:
            oldest = next(iter(connections))
            del connections[oldest]
            oldest.transport.abort()
        try:
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                found = await asyncio.wait_for(answer(reader, respond), SECONDS)
                writer.write(
                    f"HTTP/1.1 {found.code}\r\nContent-Type: {found.content_type}\r\n"
                    f"Content-Length: {len(found.body)}\r\nConnection: close\r\n\r\n".encode()
                    + found.body
                )
                await asyncio.wait_for(writer.drain(), SECONDS)
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), SECONDS)
        finally:
            connections.pop(writer, None)
            writer.transport.abort()

    return await asyncio.start_server(handle, host, port, limit=HEAD_BYTES)


async def answer(reader: asyncio.StreamReader, respond: Respond) -> Answer:
    """To the request that `reader` brings."""
    request = parse(await reader.readuntil(b"\r\n\r\n"))
    length = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or not length.isdecimal():
        text = f"expected a body of known length, found Content-Length {length!r}"
        return json_answer("411 Length Required", {"error": text})
    if len(length) > 9 or int(length) > BODY_BYTES:
        text = f"expected a body of {BODY_BYTES} bytes at most, found {length}"
        return json_answer("413 Content Too Large", {"error": text})
    return respond(replace(request, body=await reader.readexactly(int(length))))


def parse(head: bytes) -> Request:
    """The request that begins so, without its body."""
    first, *rest = head.decode("latin-1").split("\r\n")
    method, _, target = first.partition(" ")
    path = target.partition(" ")[0].partition("?")[0]
    named = (line.partition(":") for line in rest)
    return Request(method, path, {name.strip().lower(): value.strip() for name, _, value in named})


def misdirected(request: Request, served: Mapping[str, str]) -> Answer | None:
    """Why it is no request of those that are served, by path the method; None if it is one."""
    method = served.get(request.path)
    if method == request.method:
        return None
    known = served if method is None else {request.path: method}
    text = " or ".join(f"{method} {path}" for path, method in known.items())
    return json_answer(
        "405 Method Not Allowed" if method else "404 Not Found",
        {"error": f"expected {text}, found {request.method} {request.path}"},
    )
