"""An agent's last words reach its coordinator, which it may end right afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from elastic_trainer import retry
from elastic_trainer.agent import stream as agent_stream
from elastic_trainer.agent.stream import CoordinatorStream
from elastic_trainer.proto.coordinator_pb2 import CoordinatorMessage
from elastic_trainer.proto.coordinator_pb2_grpc import (
    CoordinatorServicer,
    add_CoordinatorServicer_to_server,
)
from elastic_trainer.protocol.abridgement import digest_of
from elastic_trainer.protocol.encoding import decode, decode_value, encode_coordinator
from elastic_trainer.protocol.message import (
    ABRIDGED_VERSION,
    VERSION,
    AgentMessage,
    AskWhole,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    Member,
    Round,
    RoundStands,
    Whole,
)

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.agent.identity import alone

PATIENCE = 60.0


class SlowReader(CoordinatorServicer):
    """A coordinator that answers at once and reads only when it has been told to stop waiting."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.heard: list[AgentMessage | None] = []

    async def Attend(  # noqa: N802  # the service's name
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        yield encode_coordinator(Heartbeat())
        await self.may_read.wait()
        async for envelope in requests:
            self.heard.append(decode(envelope))


async def test_an_agents_last_words_are_heard_before_it_ends_its_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_stream, "LAST_WORD_SECONDS", PATIENCE)
    monkeypatch.setattr(agent_stream, "SILENT_SECONDS", PATIENCE)
    coordinator, server = SlowReader(), grpc.aio.server()
    add_CoordinatorServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    identity = alone(port, PATIENCE)
    hello = Hello("a")
    answered = asyncio.Event()
    stream = CoordinatorStream(
        identity,
        lambda: [hello],
        lambda _: answered.set(),
        lambda: None,
        lambda _: None,
        lambda: ("127.0.0.1", port),
    )
    attending = asyncio.ensure_future(stream.attend_for_ever())
    try:
        await answered.wait()
        last = [Failed(round=2, code=1), Goodbye()]
        for message in last:
            stream.tell(message)
        closing = asyncio.ensure_future(stream.close())
        await asyncio.sleep(0.2)  # all is written by now, and nothing read
        coordinator.may_read.set()
        await closing
        assert coordinator.heard == [hello, *last]
    finally:
        attending.cancel()
        await server.stop(0)


async def test_a_stream_that_is_led_to_where_it_leads_already_goes_on() -> None:
    coordinator, server = SlowReader(), grpc.aio.server()
    add_CoordinatorServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
    place = ("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    answers: asyncio.Queue[object] = asyncio.Queue()
    lost: list[bool] = []
    stream = CoordinatorStream(
        alone(place[1], PATIENCE),
        lambda: [Hello("a")],
        answers.put_nowait,
        lambda: lost.append(True),
        lambda _: None,
        lambda: place,
    )
    attending = asyncio.ensure_future(stream.attend_for_ever())
    try:
        await answers.get()
        stream.dial_anew(place)
        assert stream.connected
        stream.dial_anew(("127.0.0.1", place[1] + 1))
        assert not stream.connected
        await answers.get()
        assert lost == [True]
    finally:
        attending.cancel()
        coordinator.may_read.set()
        await server.stop(0)


class Levels(logging.Handler):
    """Levels of what is said of a coordinator that is tried again."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Queue[int] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        if "trying again" in record.getMessage():
            self.told.put_nowait(record.levelno)


async def test_a_coordinator_that_may_be_starting_is_no_warning_and_one_that_is_lost_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_stream, "STARTING_SECONDS", 3600.0)
    coordinator, levels, answered = SlowReader(), Levels(), asyncio.Event()
    logger = logging.getLogger(retry.__name__)
    caplog.set_level(logging.DEBUG, logger=retry.__name__)
    logger.addHandler(levels)
    port, server = free_endpoint(), grpc.aio.server()
    stream = CoordinatorStream(
        alone(port, PATIENCE),
        lambda: [Hello("a")],
        lambda _: answered.set(),
        lambda: None,
        lambda _: None,
        lambda: ("127.0.0.1", port),
    )
    attending = asyncio.ensure_future(stream.attend_for_ever())
    try:
        assert await asyncio.wait_for(levels.told.get(), PATIENCE) == logging.DEBUG
        add_CoordinatorServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await asyncio.wait_for(answered.wait(), PATIENCE)
        assert levels.told.empty()
        await server.stop(0)
        assert await asyncio.wait_for(levels.told.get(), PATIENCE) == logging.WARNING
    finally:
        logger.removeHandler(levels)
        attending.cancel()
        await server.stop(0)


class OlderCoordinator(CoordinatorServicer):
    """It refuses a Hello of a later version, or asks, of those that it knows, for the whole."""

    def __init__(self, knows_digests: bool) -> None:
        self.knows_digests = knows_digests
        self.heard: list[AgentMessage | None] = []

    async def Attend(  # noqa: N802  # the service's name
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        async for envelope in requests:
            self.heard.append(decode(envelope))
            if envelope.HasField("hello") and envelope.hello.version == ABRIDGED_VERSION:
                if not self.knows_digests:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "version")
                yield encode_coordinator(AskWhole())
            else:
                yield encode_coordinator(Heartbeat())


LATER = CoordinatorMessage.FromString(b"\xba\x3e\x00")
"""A message, of field 999, that comes with a later version."""


class LaterCoordinator(CoordinatorServicer):
    """It also says what its agents don't know."""

    async def Attend(  # noqa: N802  # the service's name
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        yield encode_coordinator(Heartbeat())
        yield LATER
        yield encode_coordinator(RoundStands(1, 2))
        async for _ in requests:
            continue


async def test_what_only_a_later_coordinator_knows_is_passed_over() -> None:
    server, heard = grpc.aio.server(), asyncio.Queue[Any]()
    add_CoordinatorServicer_to_server(LaterCoordinator(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream = CoordinatorStream(
        alone(port, PATIENCE),
        lambda: [Hello("a", version=VERSION)],
        heard.put_nowait,
        lambda: None,
        lambda _: None,
        lambda: ("127.0.0.1", port),
    )
    attending = asyncio.ensure_future(stream.attend_for_ever())
    try:
        found = [await asyncio.wait_for(heard.get(), PATIENCE) for _ in range(2)]
        assert found == [Heartbeat(), RoundStands(1, 2)]
    finally:
        attending.cancel()
        await server.stop(None)


@pytest.mark.parametrize("knows_digests", [True, False])
async def test_a_large_hello_is_told_whole_once_asked_or_refused(knows_digests: bool) -> None:
    coordinator, server = OlderCoordinator(knows_digests), grpc.aio.server()
    add_CoordinatorServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    members = tuple(Member(f"agent {index:04}", index, "h", 1) for index in range(300))
    hello, answered = Hello("a", version=VERSION, round=Round(3, members)), asyncio.Event()
    stream = CoordinatorStream(
        alone(port, PATIENCE),
        lambda: [hello],
        lambda _: answered.set(),
        lambda: None,
        lambda _: None,
        lambda: ("127.0.0.1", port),
    )
    attending = asyncio.ensure_future(stream.attend_for_ever())
    try:
        await asyncio.wait_for(answered.wait(), PATIENCE)
        first, second = coordinator.heard
        assert isinstance(first, Hello) and first.round is None and first.round_digest
        if knows_digests:
            assert isinstance(second, Whole)
            assert digest_of(second.encoded_round) == first.round_digest
            assert decode_value("Round", second.encoded_round) == hello.round
        else:
            assert second == hello
    finally:
        attending.cancel()
        await server.stop(None)
