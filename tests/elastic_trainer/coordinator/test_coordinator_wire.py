"""Messages on the wire, and the coordinator's HTTP side."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from elastic_trainer.coordinator.__main__ import main
from elastic_trainer.coordinator.model import Received, Settings
from elastic_trainer.coordinator.server import CoordinatorServer
from elastic_trainer.metrics.http import BODY_BYTES, CONNECTIONS, Request, json_answer, serve_http
from elastic_trainer.protocol.encoding import decode, encode_agent, encode_coordinator
from elastic_trainer.protocol.message import (
    Committed,
    Dismissed,
    Electorate,
    Failed,
    FenceStop,
    Goodbye,
    Goodput,
    Group,
    Heartbeat,
    Hello,
    Join,
    Linked,
    Member,
    Moment,
    NewestCommit,
    Progress,
    Reported,
    Round,
    Tables,
)

GOODPUT = Goodput("i", 2, (3, 0), "k", (Moment("a", 5),), (Moment("b", 6), Moment("c", 7)))


@pytest.mark.parametrize(
    "message",
    [
        Hello("a", 1, "h", 2, Round(3, (Member("b", 1, "c"),), "d", 4, "e"), pids=(5, 6)),
        Hello("a", commits=(NewestCommit("p", 7), NewestCommit("q", 8))),
        Committed(1, 7, place="p", size=1 << 40),
        Hello("a", goodput=GOODPUT, keepers=(Moment("d", 4), Moment("e", 9))),
        Hello("a"),
        Join(7),
        Progress(1, 2, 0.5, 640),
        Reported(("loss", "rate"), ("0.31", "nan")),
        Tables(("{}", "{}")),
        Linked(3, (8,)),
        Goodbye(),
    ],
)
def test_messages_survive_the_wire(message: Any) -> None:
    assert decode(encode_agent(message)) == message


def test_what_all_tell_a_coordinator_that_was_started_anew_is_decoded_once() -> None:
    made = Round(3, tuple(Member(f"a{index}", index, "h") for index in range(50)), "h", 4)
    known = Electorate(1, 3, (Group(made.members),))
    said = [Hello(f"a{index}", index, "h", 3, made, electorate=known) for index in range(3)]
    heard = [decode(encode_agent(hello)) for hello in said]
    assert heard == said
    assert all(hello.round is heard[0].round for hello in heard)
    assert all(hello.electorate is heard[0].electorate for hello in heard)


def test_orders_survive_the_wire() -> None:
    told = Round(1, (Member("a", 0, "b"),), commits=(NewestCommit("p", 7),))
    for message in (Heartbeat(goodput=GOODPUT), FenceStop(1, 2, 3, True), Dismissed("x"), told):
        assert decode(encode_coordinator(message)) == message


def test_other_paths_are_refused() -> None:
    server = CoordinatorServer("ns/job", Settings(1, 1))
    found = server.respond(Request("GET", "/"))
    assert found.code.startswith("404") and b"expected GET /status or" in found.body
    found = server.respond(Request("POST", "/status"))
    assert found.code.startswith("405") and b"expected GET /status, found POST" in found.body
    assert server.respond(Request("GET", "/range")).code.startswith("405")


async def test_status_over_http() -> None:
    server = await serve_http("127.0.0.1", 0, lambda _: json_answer("200 OK", {"step": 3}))
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
    told = await asyncio.wait_for(reader.read(), 120)
    assert told.startswith(b"HTTP/1.1 200") and json.loads(told.split(b"\r\n\r\n")[1]) == {
        "step": 3
    }
    writer.close()
    server.close()


async def test_connections_that_ask_nothing_block_nobody() -> None:
    server = await serve_http("127.0.0.1", 0, lambda _: json_answer("200 OK", {"step": 3}))
    address = server.sockets[0].getsockname()
    idle = [await asyncio.open_connection(*address) for _ in range(2 * CONNECTIONS)]
    for _ in range(CONNECTIONS):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /status HTTP/1.1\r\n\r\n")
        told = await asyncio.wait_for(reader.read(), 120)
        assert told.startswith(b"HTTP/1.1 200")
        writer.close()
    with contextlib.suppress(ConnectionError):  # how it hears so
        assert await asyncio.wait_for(idle[0][0].read(), 120) == b"", "the oldest was cut off"
    for _, writer in idle:
        writer.close()
    server.close()


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (f"Content-Length: {BODY_BYTES + 1}", "413"),
        ("Content-Length: " + "9" * 9000, "413"),
        ("Content-Length: -1", "411"),
        ("Transfer-Encoding: chunked", "411"),
    ],
)
async def test_a_body_of_no_bounded_length_is_not_read(head: str, code: str) -> None:
    server = await serve_http("127.0.0.1", 0, lambda asked: json_answer("200 OK", {}))
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(f"PUT /range HTTP/1.1\r\n{head}\r\n\r\n".encode())
    told = await asyncio.wait_for(reader.read(), 120)
    assert told.startswith(f"HTTP/1.1 {code} ".encode()) and b"expected a body of" in told
    writer.close()
    server.close()


def test_impossible_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port=1", "--min=3", "--max=2"]) == 2
    assert "expected 1 <= min <= max, found min 3, max 2" in capsys.readouterr().err


async def test_asked_to_end_it_waits_until_somebody_has_heard_of_all_failures() -> None:
    server = CoordinatorServer("ns/job", Settings(1, 1))
    await asyncio.wait_for(server.failures_delivered(60), 120)  # of none
    server._apply(Received("a", Hello("a", 0, "h")))
    server._apply(Received("a", Failed(1, pid=7, code=1)))
    waiting = asyncio.ensure_future(server.failures_delivered(60))
    server.respond(Request("GET", "/metrics"))
    assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
    server.respond(Request("GET", "/status"))
    await asyncio.wait_for(waiting, 120)
    server._apply(Received("a", Failed(2, pid=8, code=1)))
    await asyncio.wait_for(server.failures_delivered(0.01), 120)  # nobody asks
