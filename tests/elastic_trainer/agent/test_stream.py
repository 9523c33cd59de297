"""An agent's last words reach its coordinator, which it may end right afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from elastic_trainer.agent import stream as agent_stream
from elastic_trainer.agent.stream import CoordinatorStream
from elastic_trainer.proto.coordinator_pb2_grpc import (
    CoordinatorServicer,
    add_CoordinatorServicer_to_server,
)
from elastic_trainer.protocol.message import (
    AgentMessage,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    decode,
    encode_coordinator,
)

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
