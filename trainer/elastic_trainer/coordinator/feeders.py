"""Tells newcomers whose state they may follow while others train."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_trainer.coordinator.agents import Trait
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Phase
from elastic_trainer.protocol.message import Member, Standby

MOST = 4
"""That a newcomer is told of: it asks one after another who still trains."""


def feeders(draft: Draft) -> list[Member]:
    """Return whom newcomers may follow; the port is their feed's. Nobody where nobody trains, so
    that none is waited for."""
    state = draft.state
    if state.phase is not Phase.RUNNING or not state.agents.all_attached(Trait.LINKED):
        return []
    return [
        Member(agent.agent, agent.pod_index, agent.address, agent.feed_port)
        for agent in draft.attached()
        if agent.feed_port and not agent.leaving
    ]


def standby(known: Sequence[Member], pod_index: int) -> Standby:
    """Return what a newcomer is told that is to start its workers: whom it asks first differs by
    pod."""
    first = pod_index % max(1, len(known))
    return Standby((*known[first:], *known[:first])[:MOST])


def tell_newcomers(draft: Draft) -> None:
    """Tell those whose workers are being started of a round that has just begun its training."""
    agents = draft.state.agents
    if agents.count(Trait.STANDBY) and agents.all_attached(Trait.LINKED):
        known = feeders(draft)
        for agent in [one for one in agents.values() if one.standby]:
            draft.send(agent.agent, standby(known, agent.pod_index))
