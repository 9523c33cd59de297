"""Decides which leavers take part in one more round, to give away what they alone have; pure.

Rows of a table that the elastic workers hold are with one of them alone, and so is, but for a copy,
a part of a sharded state; of a state that all have alike, the one that is left of a round has the
last. A leaver of a running round gives such things away at a fence, or commits them there. One that
begins to leave between two rounds, or whose round breaks first, has no fence; let go at once it
would take them along, and all others would go back to the newest commit. So it waits for the next
round with them, which begins with a fence for it, as long as its grace has time for that. Where no
round comes in time, or nobody is left to make one with, those that have the state make one without
a step, however few they are: it begins with the fence, at which they commit.
"""

from __future__ import annotations

from collections.abc import Collection

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.model import Phase, State

GIVE_SECONDS = 10.0
"""Seconds, at most a third of its grace, that a leaver keeps for the round in which it gives away
what it has, beside a step."""


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


def holds_part(state: State, agent: Agent) -> bool:
    """Tell whether an agent's workers hold a part of the state that others may not have."""
    return agent.holds > 0 and (agent.sharded or holds_rows(state, agent))


def has_alone(state: State, agent: Agent, failed: str = "") -> bool:
    """Tell whether an agent's workers may hold what nobody who stays has.

    Args:
        failed: an agent whose workers are gone.
    """
    if holds_rows(state, agent) or holds_part(state, agent):
        return True
    if not agent.holds:
        return False
    if not state.agents.count(Trait.STAYS):
        return True
    # Who had no place in a later round is behind that one's state.
    return not any(
        one.stays and one.holds >= agent.holds and one.node not in state.excluded
        for one in state.agents.values()
        if one.agent not in (agent.agent, failed)
    )


def may_wait(state: State, agent: Agent, now: float, failed: str = "") -> bool:
    """Tell whether a leaver may wait for a round to give away what it has, if its workers go on.

    Args:
        failed: as `has_alone`'s.
    """
    return (
        agent.leaving
        and has_alone(state, agent, failed)
        and agent.node not in state.excluded
        and now < wait_until(agent, 0.0)
    )


def waits_for_round(state: State, agent: Agent, now: float) -> bool:
    """Tell whether a leaver of no round is to wait for the next one."""
    if state.phase not in (Phase.ADOPTING, Phase.FORMING, Phase.RESTARTING):
        return False
    returns = (agent.expected and state.recovering) or agent.holds > 0
    comes = agent.live if agent.joined_at is not None else returns
    return comes and may_wait(state, agent, now)


def last_round(state: State, now: float) -> list[Agent]:
    """Return who makes a round without a step, as a leaver's time is over or nobody else is left to
    make one with; nobody while there is no reason for it, or while it would lack some that are on
    their way."""
    waiting = state.agents.count(Trait.GIVES_STATE)
    if not waiting:
        return []
    leavers = [agent for agent in state.agents.values() if agent.gives_state]
    late = any(now >= wait_until(agent, state.step_seconds) for agent in leavers)
    if not (late or _is_over(state, now) or not _others(state)):
        return []
    found = holders(state)
    return found if any(agent.leaving for agent in found) else []


def holders(state: State) -> list[Agent]:
    """Return all that wait with the state in their processes, in order; nobody where they make no
    round, or while others with it are on their way."""
    found = []
    there = [agent for agent in state.agents.values() if not agent.leaves_now]
    newest = max((agent.holds for agent in there), default=0)
    for agent in state.agents.values():
        if not (agent.holds or holds_rows(state, agent)) or agent.node in state.excluded:
            continue
        if agent.waiting and agent.live:
            found.append(agent)
        elif agent.holds and agent.holds == newest and not agent.leaves_now:
            return []
    if any(one.sharded for one in found) and len(found) % state.settings.node_unit:
        return []  # its mesh is made for whole units
    return sorted(found, key=lambda agent: agent.order)


def some_come(state: State, now: float) -> bool:
    """Tell whether agents are to be waited for that have told a new coordinator of what their
    workers alone may have, and ask for a round later."""
    return not _is_over(state, now) and any(
        agent.holds > 0
        and agent.node not in state.excluded
        and agent.joined_at is None
        and not agent.leaves_now
        and has_alone(state, agent)
        for agent in state.agents.values()
    )


def left_out(state: State, chosen: Collection[Agent]) -> list[Agent]:
    """Return who makes a round without a step before one of these, as one of them waits with a part
    of the state, and has no place there; nobody where all have one."""
    names = {agent.agent for agent in chosen}
    found = holders(state)
    return found if any(a.agent not in names and holds_part(state, a) for a in found) else []


def to_let_go(state: State, now: float) -> list[Agent]:
    """Return the leavers that are to wait no longer: their own time is over, or that of too few who
    wait for others, and they make no round by themselves."""
    if not state.agents.count(Trait.GIVES_STATE):
        return []
    found = [agent for agent in state.agents.values() if agent.gives_state]
    last = {agent.agent for agent in last_round(state, now)}
    if not last and _is_over(state, now):
        return found
    return [
        agent
        for agent in found
        if now >= agent.leave_by or not (agent.agent in last or may_wait(state, agent, now))
    ]


def _is_over(state: State, now: float) -> bool:
    over = max(state.restart_deadline, state.started + state.settings.restart_deadline)
    return state.phase is Phase.FORMING and now >= over


def _others(state: State) -> bool:
    return any(
        not agent.leaving and agent.node not in state.excluded for agent in state.agents.values()
    )
