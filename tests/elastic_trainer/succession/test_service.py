"""An agent's succession service, over HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from elastic_trainer.agent.agreement import as_the_others
from elastic_trainer.agent.host_search import HostSearch
from elastic_trainer.agent.succession_service import Requests, SuccessionService
from elastic_trainer.protocol.message import Member
from elastic_trainer.succession.agent_status import AgentStatus, EndedPods, Found
from elastic_trainer.succession.ballot import Ballot, Vote
from elastic_trainer.succession.service import GONE_PATH, GoneError, announce, ask, ask_vote, look

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.agent.identity import alone

BALLOT = Ballot(1000, "c", "127.0.0.1:7", 0, 3)
TOLD = AgentStatus("test", "a", 1000, "127.0.0.1:7", hosts=False, heard=True, round=3)


class Agent:
    """An agent that keeps what it is told, and answers."""

    def __init__(self, told: AgentStatus = TOLD) -> None:
        self.told = told
        self.heard: list[AgentStatus] = []
        self.gone: list[EndedPods] = []
        requests = Requests(
            lambda: self.told,
            lambda ballot: Vote(True, ballot.term),
            self.heard.append,
            self.gone.append,
        )
        self.service = SuccessionService(alone(free_endpoint(), 30.0), requests)

    def member(self, name: str = "a") -> Member:
        return Member(name, 0, "127.0.0.1", self.service.port)


@contextlib.asynccontextmanager
async def serving(agent: Agent) -> AsyncIterator[Agent]:
    await agent.service.serve()
    try:
        yield agent
    finally:
        agent.service.close()


async def test_an_agent_votes_tells_and_is_told() -> None:
    async with serving(Agent()) as agent:
        assert await ask_vote(agent.member(), BALLOT, "", 5.0, ended=False) == Vote(True, 1000)
        assert await look(agent.member(), "", 5.0, ended=False) == Found(TOLD)
        await announce("127.0.0.1", agent.service.port, TOLD, "", 5.0)
        assert agent.heard == [TOLD]


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        ({"addresses": ["h"]}, [True, True, False]),  # from an owner that knows no more
        ({"addresses": [], "pods": [{"address": "h", "index": 1}]}, [False, True, False]),
        ({"addresses": ["h"], "pods": []}, [False, False, False]),
    ],
)
async def test_a_pod_that_ends_takes_no_other_of_its_node_with_it(
    body: dict[str, Any], gone: list[bool]
) -> None:
    """Pods on hostNetwork have one address."""
    members = [Member("a", 0, "h", 1), Member("b", 1, "h", 2), Member("c", 1, "i", 1)]
    async with serving(Agent()) as agent:
        await ask("127.0.0.1", agent.service.port, "PUT", GONE_PATH, body, "", 5.0)
        (told,) = agent.gone
    assert [told.have(member) for member in members] == gone


@pytest.mark.parametrize("body", [{}, {"addresses": [1]}, {"addresses": [], "pods": [{}]}])
async def test_what_says_nothing_of_pods_is_refused(body: dict[str, Any]) -> None:
    async with serving(Agent()) as agent:
        with pytest.raises(ValueError, match="400"):
            await ask("127.0.0.1", agent.service.port, "PUT", GONE_PATH, body, "", 5.0)
        assert agent.gone == []


@pytest.mark.parametrize("job", ["test", "other"])
async def test_an_agent_told_to_hold_no_elections_does_as_the_others_of_its_job(job: str) -> None:
    """Its pod was made after an edit, and theirs before."""
    async with serving(Agent(replace(TOLD, job=job))) as agent:
        peers = (("127.0.0.1", free_endpoint()), ("127.0.0.1", agent.service.port))
        told = replace(alone(7, 30.0), dedicated=False, elects=False, peers=peers)
        found = await asyncio.to_thread(as_the_others, told)
    assert found.elects is (job == "test")
    assert await asyncio.to_thread(as_the_others, told) == told, "nobody answers"


async def test_whoever_was_replaced_at_its_address_or_ended_is_proven_gone() -> None:
    async with serving(Agent()) as agent:
        with pytest.raises(GoneError, match="another agent"):
            await ask_vote(agent.member("b"), BALLOT, "", 5.0, ended=False)
        assert await look(agent.member("b"), "", 5.0, ended=False) == Found(gone=True)
    nobody = Member("a", 0, "127.0.0.1", free_endpoint())
    with pytest.raises(GoneError):
        await ask_vote(nobody, BALLOT, "", 5.0, ended=True)
    assert await look(nobody, "", 5.0, ended=True) == Found(gone=True)


async def test_a_refusal_proves_nothing_of_whoever_fell_silent() -> None:
    """A firewall may refuse connections to an agent that trains."""
    cut_off = Member("a", 0, "127.0.0.1", free_endpoint())
    assert await ask_vote(cut_off, BALLOT, "", 5.0, ended=False) is None
    assert await look(cut_off, "", 5.0, ended=False) == Found()


async def test_silence_proves_nothing() -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with silent:
        member = Member("a", 0, "127.0.0.1", silent.sockets[0].getsockname()[1])
        assert await ask_vote(member, BALLOT, "", 0.1, ended=True) is None
        assert await look(member, "", 0.1, ended=True) == Found()


async def test_a_connection_that_ends_without_an_answer_tells_of_a_process_that_ends() -> None:
    ending = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
    async with ending:
        member = Member("a", 0, "127.0.0.1", ending.sockets[0].getsockname()[1])
        assert await look(member, "", 5.0, ended=True) == Found(closed=True)


@pytest.mark.parametrize(
    ("told", "others_may_train"),
    [
        (TOLD, False),
        (replace(TOLD, round=0, heard=False), False),
        (replace(TOLD, heard=False), True),
        (replace(TOLD, job="another", heard=False), False),
        (replace(TOLD, agent="itself", heard=False), False),
    ],
)
async def test_a_new_worker_0_learns_whether_others_may_be_training(
    told: AgentStatus, others_may_train: bool
) -> None:
    search = HostSearch(replace(alone(7, 30.0), agent="itself"), random.Random(1))
    places = [("127.0.0.1", free_endpoint())]
    async with serving(Agent(told)) as agent:
        answers = await search.ask([*places, ("127.0.0.1", agent.service.port)])
    assert answers.others_may_train is others_may_train


@pytest.mark.parametrize(
    ("told", "others_may_stay"),
    [
        (TOLD, True),
        (replace(TOLD, stays=False), False),
        (replace(TOLD, job="another"), False),
        (replace(TOLD, agent="itself"), False),
    ],
)
async def test_who_leaves_learns_whether_others_stay(
    told: AgentStatus, others_may_stay: bool
) -> None:
    search = HostSearch(replace(alone(7, 30.0), agent="itself"), random.Random(1))
    async with serving(Agent(told)) as agent:
        places = [("127.0.0.1", free_endpoint()), ("127.0.0.1", agent.service.port)]
        assert (await search.ask(places)).others_may_stay is others_may_stay
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with silent:
        place = "127.0.0.1", silent.sockets[0].getsockname()[1]
        assert (await search.ask([place])).others_may_stay
