"""A small HTTP side: answers to GET, one a connection, bounded in size, number and time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SECONDS = 5.0
"""For a request to come, and again for its answer to be taken."""
HEAD_BYTES = 16384
CONNECTIONS = 64
"""At a time; more are told to come back."""


@dataclass(frozen=True)
class Answer:
    code: str
    body: bytes
    content_type: str = "application/json"


Respond = Callable[[str, Mapping[str, str]], Answer]
"""Of a path and the request's headers, their names in lower case."""


def json_answer(code: str, value: dict[str, Any]) -> Answer:
    return Answer(code, json.dumps(value).encode() + b"\n")


def text_answer(text: str) -> Answer:
    """Of metrics, as Prometheus reads them."""
    return Answer("200 OK", text.encode(), "text/plain; version=0.0.4; charset=utf-8")


async def serve_http(host: str, port: int, respond: Respond) -> asyncio.Server:
    """Raises OSError if the address can't be bound."""
    open_now = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                if open_now > CONNECTIONS:
                    found = json_answer("503 Service Unavailable", {"error": "too many requests"})
                else:
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
                    found = answer(head, respond)
                writer.write(
                    f"HTTP/1.1 {found.code}\r\nContent-Type: {found.content_type}\r\n"
                    f"Content-Length: {len(found.body)}\r\nConnection: close\r\n\r\n".encode()
                    + found.body
                )
                await asyncio.wait_for(writer.drain(), SECONDS)
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), SECONDS)
        finally:
            open_now -= 1
            writer.transport.abort()

    return await asyncio.start_server(handle, host, port, limit=HEAD_BYTES)


def answer(head: bytes, respond: Respond) -> Answer:
    """To the request that begins with `head`."""
    first, *rest = head.decode("latin-1").split("\r\n")
    method, _, target = first.partition(" ")
    path = target.partition(" ")[0].partition("?")[0]
    if method != "GET":
        return json_answer("405 Method Not Allowed", {"error": f"expected GET, found {method}"})
    named = (line.partition(":") for line in rest)
    return respond(path, {name.strip().lower(): value.strip() for name, _, value in named})
