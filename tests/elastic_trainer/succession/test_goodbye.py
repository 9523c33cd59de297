"""An agent that ends says goodbye to the coordinator, but waits for one only while others stay."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from elastic_trainer.agent.coordinator_process import CoordinatorProcess
from elastic_trainer.agent.succession import Hooks, Succession
from elastic_trainer.protocol.message import Electorate, Group, Member

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.agent.identity import alone
from tests.elastic_trainer.succession.test_service import TOLD, Agent, serving

LEAVES = replace(TOLD, agent="b", heard=False, stays=False)


def leaver(peer: Agent, index: int, *, port: int = 1) -> Succession:
    """An agent that ends without a coordinator, and once was in a round with a peer.

    Args:
        port: of its own succession service in that round; 0: it had none, and no vote.
    """
    hooks = Hooks(
        connected=lambda: False,
        ended_by=lambda: None,
        address=lambda: "127.0.0.1",
        dial_anew=lambda place: None,
        dialled=lambda: ("127.0.0.1", 1),
        tell=lambda message: None,
        stays=lambda: False,
    )
    identity = replace(
        alone(free_endpoint(), 30.0), agent="itself", pod_index=index, dedicated=False
    )
    found = Succession(identity, CoordinatorProcess(identity), hooks)
    members = (Member("itself", index, "127.0.0.1", port), peer.member("b"))
    found.heard(Electorate(1, 3, (Group(members),)))
    return found


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_coordinator_is_waited_for_while_anybody_stays(leaves: bool) -> None:
    async with serving(Agent(LEAVES if leaves else replace(LEAVES, stays=True))) as peer:
        alone_soon = asyncio.ensure_future(leaver(peer, 1).nobody_stays())
        if not leaves:
            await asyncio.sleep(1.5)
            assert not alone_soon.done()
            peer.told = LEAVES
        await asyncio.wait_for(alone_soon, 30)
    await asyncio.wait_for(leaver(peer, 1).nobody_stays(), 30)  # nobody is there at all


async def test_nobody_waits_for_who_had_no_vote_and_the_host_waits_for_nobody() -> None:
    async with serving(Agent()) as peer:
        assert leaver(peer, 1).is_awaited
        assert not leaver(peer, 1, port=0).is_awaited
        assert not leaver(peer, 0).is_awaited, "it hosts the coordinator by right"
