"""Compares the running round's ranks with one another, by what their agents have told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Phase, Settings, State
from elastic_trainer.coordinator.rebalance import FULL
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.set_seconds import set_seconds
from elastic_trainer.coordinator.straggler import Key, Straggler, Worked
from elastic_trainer.protocol.message import AgentMessage, Progress

STRAGGLER_VARIABLE = "VOLCANO_ELASTIC_STRAGGLER_SECONDS"
"""The shortest time over which ranks are compared; 0: they never are."""

MOST_SHOWN = 64
"""Ranks that /status lists."""


POLICY_VARIABLE = "VOLCANO_ELASTIC_STRAGGLERS"
"""`Rebalance`: slow ranks take fewer samples; `Report`, which is the default: they don't."""


def rebalances(environment: Mapping[str, str]) -> bool:
    """Return whether slow ranks take fewer samples. Raises ValueError for another word."""
    word = environment.get(POLICY_VARIABLE, "") or "Report"
    if word not in ("Report", "Rebalance"):
        raise ValueError(f"{POLICY_VARIABLE}: expected Report or Rebalance, found {word!r}")
    return word == "Rebalance"


def window_seconds(environment: Mapping[str, str]) -> float:
    """Return them as set, infinite for never. Raises ValueError for what is no time."""
    seconds = set_seconds(environment, STRAGGLER_VARIABLE, Settings.straggler_seconds, "never")
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
    shares, seconds = state.shares, state.settings.straggler_seconds
    if state.settings.rebalance and looked.paces is not state.stragglers.paces:
        shares = shares.window(looked.paces, looked.named.keys(), draft.now, seconds)
    draft.state = replace(state, stragglers=looked, shares=shares)


def shares_of(state: State, chosen: Sequence[Agent]) -> list[tuple[int, int]]:
    """Return the ranks of a round of these agents that take fewer samples, with their shares."""
    found = []
    for node_rank, agent in enumerate(chosen):
        for local_rank in range(len(agent.worked)):
            share = state.shares.given.get((agent.agent, local_rank))
            if share is not None:
                found.append((node_rank * len(agent.worked) + local_rank, share))
    return found


def shares_as_json(state: State) -> dict[str, float]:
    """Return, by rank, the part of what the others take that slow ranks of the round take."""
    running = state.round
    if running is None:
        return {}
    pairs = zip(running.reduced, running.shares, strict=True)
    return {str(rank): share / FULL for rank, share in pairs}


def change_of_shares(state: State) -> str:
    """Return in words which shares are due."""
    given = ", ".join(
        f"{agent.pod_index} (local rank {key[1]}): {share / FULL:.0%}"
        for key, share in sorted(state.shares.given.items())
        if (agent := state.agents.get(key[0])) is not None
    )
    return f"other shares of a step's samples: worker {given}" if given else "equal shares again"


def named_count(state: State) -> int:
    """Return how many ranks of the round are named."""
    return sum(1 for _ in _named(state))


def as_json(state: State, offset: float) -> list[dict[str, Any]]:
    """Return the round's stragglers for /status, of very many those that are slower than the rest
    by most; `offset` makes Unix seconds of their times."""
    members = state.round.members if state.round is not None else ()
    node_ranks = {member.agent: rank for rank, member in enumerate(members)}
    found = [
        _as_json(
            state.stragglers.named[key],
            node_ranks[key[0]] * len(agent.worked) + key[1],
            agent.pod_index,
            agent.node,
            offset,
        )
        for agent, key in _named(state)
    ]
    slowest = sorted(found, key=lambda one: float(one["score"]), reverse=True)[:MOST_SHOWN]
    return sorted(slowest, key=lambda one: int(one["rank"]))


def _named(state: State) -> Iterator[tuple[Agent, Key]]:
    """Yield those of the round, with their agents."""
    if state.round is None or not state.stragglers.named:
        return
    members = {member.agent for member in state.round.members}
    for key in state.stragglers.named:
        agent = state.agents.get(key[0])
        if agent is not None and key[0] in members and key[1] < len(agent.worked):
            yield agent, key


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
