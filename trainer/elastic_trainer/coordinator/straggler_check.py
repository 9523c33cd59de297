"""Compares the running round's ranks with one another, by what their agents have told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Phase, Settings, State
from elastic_trainer.coordinator.straggler import Straggler, Worked
from elastic_trainer.protocol.message import AgentMessage, Progress

STRAGGLER_VARIABLE = "VOLCANO_ELASTIC_STRAGGLER_SECONDS"
"""The shortest time over which ranks are compared; 0: they never are."""


def window_seconds(environment: Mapping[str, str]) -> float:
    """Return them as set, infinite for never. Raises ValueError for what is no time."""
    text = environment.get(STRAGGLER_VARIABLE, "")
    try:
        seconds = float(text) if text else Settings.straggler_seconds
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(
            f"{STRAGGLER_VARIABLE}: expected seconds, or 0 for never, found {text!r}; fix or unset "
            "it"
        )
    return seconds or math.inf


def told(message: AgentMessage) -> tuple[Worked, ...]:
    """Return what each worker has worked so far, by local rank; empty where it is not told."""
    if not isinstance(message, Progress):
        return ()
    columns = (
        message.compute,
        message.waited,
        message.network,
        message.batches,
        message.batch_samples,
    )
    return tuple(Worked(*row) for row in zip(*columns, strict=False))


def look_for_stragglers(draft: Draft) -> None:
    """Takes a look at the round's ranks once the window is over."""
    state = draft.state
    if state.phase is not Phase.RUNNING or state.round is None:
        return
    if not state.stragglers.due(draft.now, state.settings.straggler_seconds):
        return
    worked = {
        (agent.agent, local_rank): one
        for agent in draft.attached()
        for local_rank, one in enumerate(agent.worked)
    }
    looked = state.stragglers.looked(state.round.round, worked, draft.now)
    draft.state = replace(state, stragglers=looked)


def as_json(state: State, offset: float) -> list[dict[str, Any]]:
    """Return the round's stragglers for /status; `offset` makes Unix seconds of their times."""
    members = state.round.members if state.round is not None else ()
    found = []
    for node_rank, member in enumerate(members):
        agent = state.agents.get(member.agent)
        for local_rank in range(len(agent.worked) if agent is not None else 0):
            named = state.stragglers.named.get((member.agent, local_rank))
            if agent is not None and named is not None:
                rank = node_rank * len(agent.worked) + local_rank
                found.append(_as_json(named, rank, agent.pod_index, agent.node, offset))
    return found


def _as_json(named: Straggler, rank: int, worker: int, node: str, offset: float) -> dict[str, Any]:
    slow = named.slowness
    return {
        "rank": rank,
        "worker": worker,
        "node": node,
        "since": round(named.since + offset, 3),
        "batch_seconds": round(slow.own, 6),
        "others_batch_seconds": round(slow.usual, 6),
        "score": round(slow.score, 2),
        "cause": slow.cause,
    }
