"""Applies what ranks tell of their states: who differs is told, and takes the others' state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.divergence import Key
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Divergence, Phase, State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import Digested

SELDOM = 600.0
"""Seconds in which no round is ended for the same rank again."""
MOST_KEPT = 64
"""Divergences that /status lists: the newest."""


def hear_digests(draft: Draft, agent: Agent, message: Digested) -> None:
    state = draft.state
    if state.round is None or state.round.round != message.round or not agent.attached:
        return
    members = state.round.names
    before = state.replicas
    after = before.heard(
        message.round, message.step, agent.agent, message.digests, members, draft.now
    )
    draft.state = replace(state, replicas=after)
    if after.diverged != before.diverged:
        _note(draft)
        _repair(draft, sorted(after.outvoted - before.outvoted))


def _note(draft: Draft) -> None:
    """Keeps who differs, and until when."""
    state = draft.state
    diverged = state.replicas.diverged
    kept = [
        one if one.key in diverged or one.until is not None else replace(one, until=draft.now)
        for one in state.divergences
    ]
    known = {one.key: place for place, one in enumerate(kept) if one.until is None}
    for key, found in sorted(diverged.items()):
        if key in known:
            kept[known[key]] = replace(kept[known[key]], found=found)
        elif key[0] in state.agents:
            agent = state.agents[key[0]]
            kept.append(
                Divergence(key, found, _rank(state, agent, key), agent.pod_index, agent.node)
            )
    draft.state = replace(state, divergences=tuple(kept[-MOST_KEPT:]))


def _rank(state: State, agent: Agent, key: Key) -> int:
    assert state.round is not None
    return (state.round.rank_of(agent.agent) or 0) * max(1, agent.processes) + key[1]


def _repair(draft: Draft, found: list[Key]) -> None:
    """Ends the round for ranks that are found to differ, where that takes no restart: in the next
    one they take the others' state. One that differs again soon is left so until a round ends for
    another reason: its arithmetic is another, and always will be."""
    state, attached = draft.state, draft.attached()
    repaired = {key: time for key, time in state.repaired.items() if time > draft.now - SELDOM}
    found = [key for key in found if key not in repaired]
    if not found or state.phase is not Phase.RUNNING:
        return
    if not all(agent.linked and agent.recovers for agent in attached):
        return
    draft.state = replace(state, repaired={**repaired, **dict.fromkeys(found, draft.now)})
    agents = state.agents
    who = ", ".join(
        f"{agents[name].pod_index} (local rank {local_rank}, node {agents[name].node})"
        for name, local_rank in found
    )
    draft.end_round(f"worker {who} has another state than the others")


def diverged_ranks(state: State, chosen: Iterable[Agent]) -> tuple[int, ...]:
    """Return the ranks of a round of these agents whose state nobody is to go on from."""
    outvoted = state.replicas.outvoted
    return tuple(
        node_rank * max(1, agent.processes) + local_rank
        for node_rank, agent in enumerate(chosen)
        for local_rank in range(max(1, agent.processes))
        if (agent.agent, local_rank) in outvoted
    )


def as_json(state: State, offset: float) -> list[dict[str, Any]]:
    """Return ranks that differ or differed, for /status, by time; `offset` makes Unix seconds of
    their times."""
    return [
        {
            "rank": one.rank,
            "worker": one.worker,
            "node": one.node,
            "since": round(one.found.since + offset, 3),
            "until": None if one.until is None else round(one.until + offset, 3),
            "step": one.found.step,
            "agreed_step": one.found.agreed,
            "outvoted": one.found.outvoted,
        }
        for one in state.divergences
    ]
