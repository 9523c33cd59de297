"""A coordinator that was started anew asks one agent for what all members would tell."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc.aio
from elastic_trainer.coordinator.model import Phase
from elastic_trainer.coordinator.server import CoordinatorServer
from elastic_trainer.protocol.abridgement import WHOLE_BYTES, abridge
from elastic_trainer.protocol.encoding import decode, encode_agent
from elastic_trainer.protocol.message import (
    AskWhole,
    Electorate,
    Heartbeat,
    Hello,
    Member,
    Progress,
    Round,
    Whole,
)
from elastic_trainer.succession.electorate import electorate_of

from tests.elastic_trainer.coordinator.test_coordinator_guard import (
    HELLO,
    attending,
    refusal,
    served,
)

MEMBERS = tuple(Member(f"agent {index:04}", index, "127.0.0.1", 6000) for index in range(100))
ROUND = Round(7, MEMBERS, "127.0.0.1", 5000, "test")
MEMBER = replace(HELLO, round=ROUND, last_round=7, electorate=electorate_of(ROUND), linked=True)


def whole_hello(index: int) -> Hello:
    return replace(MEMBER, agent=MEMBERS[index].agent, pod_index=index)


def abridged_hello(index: int) -> tuple[Any, Whole]:
    """Return a member's Hello as the wire has it, and what it leaves out."""
    envelope = encode_agent(whole_hello(index))
    told = abridge(envelope)
    assert told is not None and envelope.ByteSize() < WHOLE_BYTES / 8
    return envelope, told


async def heard(call: Any) -> Any:
    return decode(await asyncio.wait_for(call.read(), 120))


def known(server: CoordinatorServer) -> tuple[Round | None, Electorate | None]:
    return server.state.round, server.state.electorate


def test_a_small_hello_stays_whole() -> None:
    small = encode_agent(replace(HELLO, round=Round(1, MEMBERS[:9]), electorate=None))
    before = small.SerializeToString()
    assert abridge(small) is None and small.SerializeToString() == before


async def test_one_member_tells_it_for_all() -> None:
    async with (
        served() as (server, port),
        attending(port) as first,
        attending(port) as second,
        attending(port, Heartbeat()) as stranger,
    ):
        assert (await refusal(stranger))[0] is grpc.StatusCode.FAILED_PRECONDITION
        (told, whole), (others, _) = abridged_hello(0), abridged_hello(1)
        await first.write(told)
        assert await heard(first) == AskWhole()
        assert not server.state.agents, "nothing is decided before the round is known"
        await second.write(others)
        await first.write(encode_agent(Progress(7, 12)))  # said before it heard the question
        await first.write(encode_agent(whole))
        assert isinstance(await heard(first), Heartbeat)
        assert isinstance(await heard(second), Heartbeat), "it isn't asked"
        assert server.state.phase is Phase.ADOPTING
        assert known(server) == (ROUND, electorate_of(ROUND))
        assert all(agent.attached and agent.linked for agent in server.state.agents.values())
        assert server.state.step == 12


async def test_another_is_asked_where_the_first_does_not_answer() -> None:
    async with served() as (server, port), attending(port) as mute, attending(port) as second:
        (told, _), (others, whole) = abridged_hello(0), abridged_hello(1)
        await mute.write(told)
        assert await heard(mute) == AskWhole()
        await second.write(others)
        assert await heard(second) == AskWhole()
        await second.write(encode_agent(whole))
        assert isinstance(await heard(second), Heartbeat)
        assert list(server.state.agents) == [MEMBERS[1].agent]
        assert known(server) == (ROUND, electorate_of(ROUND))


async def test_who_tells_another_round_than_it_named_is_refused() -> None:
    async with served() as (server, port), attending(port) as call:
        told, whole = abridged_hello(0)
        await call.write(told)
        assert await heard(call) == AskWhole()
        await call.write(encode_agent(replace(whole, encoded_round=b"")))
        code, text = await refusal(call)
        assert code is grpc.StatusCode.FAILED_PRECONDITION and "expected a Whole with" in text
        assert not server.state.agents


async def test_a_member_of_an_earlier_version_tells_the_whole() -> None:
    async with served() as (server, port), attending(port, whole_hello(0)) as call:
        assert isinstance(await heard(call), Heartbeat)
        async with attending(port) as newer:
            await newer.write(abridged_hello(1)[0])
            assert isinstance(await heard(newer), Heartbeat), "the coordinator has that round"
        assert known(server) == (ROUND, electorate_of(ROUND))
