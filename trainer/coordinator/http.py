"""The HTTP side: `GET /status`, one short answer a connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

REQUEST_SECONDS = 5.0
HEAD_BYTES = 16384


async def serve_status(host: str, port: int, status: Callable[[], dict[str, Any]]) -> Any:
    """An asyncio server. Raises OSError if the address can't be bound."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
            code, body = respond(head, status)
            text = json.dumps(body).encode() + b"\n"
            writer.write(
                f"HTTP/1.1 {code}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode()
                + text
            )
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port, limit=HEAD_BYTES)


def respond(head: bytes, status: Callable[[], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Status line and JSON body for a request's head."""
    method, _, rest = head.decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path != "/status":
        return "404 Not Found", {"error": f"expected GET /status, found path {path!r}"}
    if method != "GET":
        return "405 Method Not Allowed", {"error": f"expected GET, found {method}"}
    return "200 OK", status()
