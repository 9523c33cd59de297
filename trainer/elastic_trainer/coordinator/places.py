"""Chooses who has a place in a round for which too many wait; pure.

Who has none gives nothing to the round. So the agents are chosen together: a part of a sharded
state is in the memory of one node and of the next one, its mirror, and where a node was lost, in
that of one of the two alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.protocol.message import StatePart

_Named = tuple[int, int, str, int]
"""A sharded state: run, step, digest of how it is spread, and of how many parts it is made."""


def choose_places(
    agents: Collection[Agent], size: int, promised: Collection[str] = ()
) -> list[Agent]:
    """Return so many of these agents, in their order.

    They are those that together hold the newest sharded state whose parts are all in the memory of
    the agents, where so few can; else, and where they do, the first ones. First come those that
    were promised a place at a fence, as memory there holds what storage may not have; then those
    that have the state, or rows, and stay, those that have such and leave, and all others.

    Args:
        promised: names of agents.
    """

    def precedence(agent: Agent) -> int:
        if agent.agent in promised:
            return 0
        has_state = agent.live and (agent.holds or agent.tables)
        return 1 + agent.leaving if has_state else 3

    found = sorted(sorted(agents, key=lambda agent: agent.order), key=precedence)
    chosen = None
    # Who came from a fence told of nothing: it was given there what it is to have.
    told = all(agent.parts for agent in found if agent.agent in promised)
    if told and size < len(found) and any(agent.parts for agent in found):
        tries = (_keep_whole(found, size, one, precedence) for one in _whole_states(found))
        chosen = next((one for one in tries if one is not None), None)
    return sorted(chosen or found[:size], key=lambda agent: agent.order)


def _whole_states(agents: Sequence[Agent]) -> list[_Named]:
    """Return the states of which the agents hold all parts, the newest first."""
    there: dict[_Named, set[int]] = {}
    for agent in agents:
        for part in agent.parts:
            there.setdefault(_of(part), set()).add(part.number)
    return sorted((one for one, numbers in there.items() if len(numbers) == one[3]), reverse=True)


def _keep_whole(
    agents: Sequence[Agent], size: int, state: _Named, precedence: Callable[[Agent], int]
) -> list[Agent] | None:
    """Return so many of the agents that together hold all of a state; None where none were found.

    From the last one on, each whose parts others hold, too, is left out. Nodes hold parts of their
    neighbours in a ring, which a loss cuts open: from there on around it, that leaves out the most.
    """
    held = {
        agent.agent: {part.number for part in agent.parts if _of(part) == state} for agent in agents
    }
    first = agents[:size]
    if len(set().union(*(held[agent.agent] for agent in first))) == state[3]:
        return list(first)
    copies = Counter(number for numbers in held.values() for number in numbers)
    last_first = sorted(agents, key=lambda agent: agent.order, reverse=True)
    cuts = (n for n, one in enumerate(last_first) if any(copies[p] == 1 for p in held[one.agent]))
    cut = next(cuts, 0)
    around = last_first[cut:] + last_first[:cut]
    left_out: set[str] = set()
    for agent in sorted(around, key=precedence, reverse=True):
        numbers = held[agent.agent]
        if len(left_out) < len(agents) - size and all(copies[number] > 1 for number in numbers):
            copies.subtract(numbers)
            left_out.add(agent.agent)
    kept = [agent for agent in agents if agent.agent not in left_out]
    return kept if len(kept) == size else None


def _of(part: StatePart) -> _Named:
    return (part.run, part.step, part.state, part.numbers)
