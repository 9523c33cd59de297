"""Takes out of a round the workers that are lost, and says in words which ones; pure.

A node takes all its workers along, whose agents are missed one after the other: the first loss ends
the round, and the others are added to its reason.
"""

from __future__ import annotations

from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import LostWorker
from elastic_trainer.coordinator.replacement import replace

_NAMED = 8
"""Workers of a node, and nodes, that are named; of more, how many there are is said."""


def lose(draft: Draft, name: str, why: str) -> None:
    """Removes a lost agent. The round that it is in ends."""
    agent = draft.state.agents.get(name)
    if agent is None:
        return
    draft.remove(name)
    if agent.leaving:  # it takes part in no election
        count_out(draft, name)
    node = "" if agent.node == f"worker {agent.pod_index}" else agent.node
    lost = LostWorker(agent.pod_index, node, why)
    if agent.attached and name not in draft.state.succeeded:
        draft.end_round(words((lost,)), failed=name)
        draft.state = replace(draft.state, lost=(lost,))
        _count(draft, 1)
        return
    state = draft.state
    same_end = bool(state.lost) and state.round is None
    if same_end and name in state.last_members and name not in state.left:
        _note(draft, lost)


def count_out(draft: Draft, name: str) -> None:
    """Takes note that an agent never comes back, as it said."""
    state = draft.state
    draft.state = replace(state, gone=state.gone | {name}, left=state.left | {name})


def words(lost: tuple[LostWorker, ...], others: int = 0) -> str:
    """Return which workers were lost, by node, and why the first was.

    Args:
        lost: at least one, by time.
        others: lost workers of further nodes.
    """
    nodes = dict.fromkeys(one.node for one in lost)
    parts = []
    for node in nodes:
        who = _workers({one.worker for one in lost if one.node == node})
        parts.append(f"{who} on {node}" if node else who)
    if others:
        parts.append(f"{others} more on other nodes")
    return f"{'; '.join(parts)} lost ({lost[0].why})"


def lose_with_coordinator(draft: Draft, workers: set[int]) -> None:
    """Ends a round of which a new coordinator has not found these members, at least one."""
    draft.end_round(f"{_workers(workers)} lost with the coordinator")
    _count(draft, len(workers))


def _workers(indexes: set[int]) -> str:
    found = sorted(indexes)
    if len(found) == 1:
        return f"worker {found[0]}"
    if len(found) > _NAMED:
        return f"{len(found)} workers"
    return f"workers {', '.join(map(str, found[:-1]))} and {found[-1]}"


def _note(draft: Draft, lost: LostWorker) -> None:
    """Adds to who was lost with the round that has ended for it, and to the next one's reason."""
    named, others = draft.state.lost, draft.state.others_lost
    nodes = {one.node for one in named}
    if lost.node in nodes or len(nodes) < _NAMED:
        named = (*named, lost)
    else:
        others += 1
    reason = words(named, others)
    draft.state = replace(draft.state, lost=named, others_lost=others, reason=reason)
    _count(draft, len(named) + others)


def _count(draft: Draft, number: int) -> None:
    """Keeps with the round that has just ended how many workers it lost."""
    state = draft.state
    if state.round is None and state.rounds:
        ended = replace(state.rounds[-1], end=state.reason, lost=number)
        draft.state = replace(state, rounds=(*state.rounds[:-1], ended))
