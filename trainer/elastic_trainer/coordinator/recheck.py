"""Has nodes checked again after a failure of devices, before the next round with them; pure.

All who would be in that round take part, between two rounds, when no rank computes: so it takes as
long as a check of two does, and finds the broken among any number of suspects. Whoever waits for a
check goes on without it once it takes too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Recheck, State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.set_seconds import set_seconds
from elastic_trainer.protocol.message import CheckNode, Failed

RECHECK_VARIABLE = "VOLCANO_ELASTIC_RECHECK_SECONDS"
RECHECK_SECONDS = 120.0


def recheck_seconds(environment: Mapping[str, str]) -> float:
    """Return the longest that such a check may hold up a round, 0: there is none. Raises ValueError
    for what is no time."""
    return set_seconds(environment, RECHECK_VARIABLE, RECHECK_SECONDS, "no check")


def suspect(state: State, failed: Failed) -> State:
    """Return the state after a worker's failure. An agent tells a new coordinator of old ones,
    too, after which rounds were made with its node: those cast no doubt on it any more."""
    new = failed.round >= state.last_round - 1
    if not (failed.node_fault and new and state.settings.recheck_seconds):
        return state
    return replace(state, suspects=state.suspects | {failed.node})


def awaits_check(draft: Draft, chosen: Sequence[Agent]) -> bool:
    """Return whether the round of these waits for a node check; asks for it where one is due."""
    state = draft.state
    if (under_way := state.recheck) is not None:
        there = sum(name in state.agents for name in under_way.agents)
        if there > 1 and draft.now < under_way.deadline:
            return True
        draft.state = checked(state)
        return False
    if len(chosen) < 2 or not any(agent.node in state.suspects for agent in chosen):
        return False
    names = frozenset(agent.agent for agent in chosen)
    due = Recheck(names, draft.now + state.settings.recheck_seconds)
    draft.state = replace(state, recheck=due)
    asked = CheckNode()
    for name in names:
        draft.send(name, asked)
    return True


def checked(state: State) -> State:
    """Return the state once a check is over, or was waited for too long."""
    return replace(state, suspects=frozenset(), recheck=None, checking=False)
