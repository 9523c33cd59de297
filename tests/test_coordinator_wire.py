"""Messages on the wire, and the coordinator's HTTP side."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from trainer.coordinator.__main__ import main
from trainer.coordinator.http import answer, json_answer, serve_http
from trainer.coordinator.message import (
    Dismissed,
    Failed,
    FenceStop,
    Goodbye,
    Hello,
    Join,
    Linked,
    Member,
    Progress,
    Round,
    decode,
    encode_agent,
    encode_coordinator,
)
from trainer.coordinator.model import Received, Settings
from trainer.coordinator.server import CoordinatorServer


@pytest.mark.parametrize(
    "message",
    [
        Hello("a", 1, "h", 2, Round(3, (Member("b", 1, "c"),), "d", 4, "e"), pids=(5, 6)),
        Hello("a"),
        Join(7),
        Progress(1, 2, 0.5, 640),
        Linked(3, (8,)),
        Goodbye(),
    ],
)
def test_messages_survive_the_wire(message: Any) -> None:
    assert decode(encode_agent(message)) == message


def test_orders_survive_the_wire() -> None:
    for message in (FenceStop(1, 2, 3, True), Dismissed("x"), Round(1, (Member("a", 0, "b"),))):
        assert decode(encode_coordinator(message)) == message


def test_other_paths_are_refused() -> None:
    server = CoordinatorServer("ns/job", Settings(1, 1))
    assert answer(b"GET / HTTP/1.1\r\n\r\n", server.respond).code.startswith("404")
    assert answer(b"POST /status HTTP/1.1\r\n\r\n", server.respond).code.startswith("405")


async def test_status_over_http() -> None:
    server = await serve_http("127.0.0.1", 0, lambda path, _: json_answer("200 OK", {"step": 3}))
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
    told = await asyncio.wait_for(reader.read(), 5)
    assert told.startswith(b"HTTP/1.1 200") and json.loads(told.split(b"\r\n\r\n")[1]) == {
        "step": 3
    }
    writer.close()
    server.close()


def test_impossible_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port=1", "--min=3", "--max=2"]) == 2
    assert "expected 1 <= min <= max, found min 3, max 2" in capsys.readouterr().err


async def test_asked_to_end_it_waits_until_somebody_has_heard_of_all_failures() -> None:
    server = CoordinatorServer("ns/job", Settings(1, 1))
    await asyncio.wait_for(server.heard_out(60), 5)  # of none
    server._apply(Received("a", Hello("a", 0, "h")))
    server._apply(Received("a", Failed(1, pid=7, code=1)))
    waiting = asyncio.ensure_future(server.heard_out(60))
    server.respond("/metrics", {})
    assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
    server.respond("/status", {})
    await asyncio.wait_for(waiting, 5)
    server._apply(Received("a", Failed(2, pid=8, code=1)))
    await asyncio.wait_for(server.heard_out(0.01), 5)  # nobody asks
