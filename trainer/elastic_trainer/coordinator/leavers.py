"""Decides which leavers take part in one more round, to give their embedding rows away; pure.

Rows of a table that the elastic workers hold are with one of them alone. A leaver of a running
round gives its own away at a fence. One that begins to leave between two rounds, or whose round
breaks first, has no fence; let go at once it would take its rows along, and without a second copy
all others would go back to the newest commit. So it waits for the next round with them, which
begins with a fence for it, as long as its grace has time for that.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.model import Phase, State

GIVE_SECONDS = 10.0
"""Seconds, at most a third of its grace, that a leaver keeps for the round in which it gives its
rows away, beside a step."""


def wait_until(agent: Agent, step_seconds: float) -> float:
    """Return until when a leaver may wait for a round.

    Args:
        step_seconds: what a step takes, of which that round makes one before its fence.
    """
    grace = agent.leave_by - (agent.leaving_since or 0.0)
    return agent.leave_by - min(GIVE_SECONDS, grace / 3) - step_seconds


def holds_rows(state: State, agent: Agent) -> bool:
    """Tell whether an agent's workers may hold rows: they told of tables, or were in the newest
    round with others that did."""
    told = state.agents.count(Trait.TABLES) > 0
    return bool(agent.tables) or (told and agent.agent in state.last_members)


def may_give_rows(state: State, agent: Agent, now: float) -> bool:
    """Tell whether a leaver may wait for a round to give its rows away, if its workers go on."""
    return (
        agent.leaving
        and holds_rows(state, agent)
        and agent.node not in state.excluded
        and now < wait_until(agent, state.step_seconds)
    )


def waits_for_round(state: State, agent: Agent, now: float) -> bool:
    """Tell whether a leaver of no round is to wait for the next one."""
    if state.phase not in (Phase.FORMING, Phase.RESTARTING):
        return False
    comes = agent.live if agent.joined_at is not None else agent.expected and state.recovering
    return comes and may_give_rows(state, agent, now)


def to_let_go(state: State, now: float) -> list[Agent]:
    """Return the leavers that are to wait no longer: their own time is over, or that of too few who
    wait for others; or nobody stays to take their rows, and they make no round by themselves, which
    would commit."""
    waiting = state.agents.count(Trait.GIVES_ROWS)
    if not waiting:
        return []
    found = [agent for agent in state.agents.values() if agent.gives_rows]
    others = any(
        not agent.leaving and agent.node not in state.excluded for agent in state.agents.values()
    )
    over = max(state.restart_deadline, state.started + state.settings.restart_deadline)
    if (state.phase is Phase.FORMING and now >= over) or not (
        others or state.settings.size(waiting)
    ):
        return found
    return [agent for agent in found if not may_give_rows(state, agent, now)]


def precedence(state: State) -> Callable[[Agent], int]:
    """Return what tells who has a place in a round for which too many wait, the least first: who
    was promised one at a fence, as memory there holds what storage may not have; then who holds
    rows and stays, who holds rows and leaves, and all others."""

    def rank(agent: Agent) -> int:
        if agent.agent in state.promised:
            return 0
        if agent.live and agent.tables:
            return 2 if agent.leaving else 1
        return 3

    return rank
