"""Which rank hands a state on to which: once to each node, from node to node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relay:
    """One rank's part in handing a state on."""

    source: int | None
    """The rank that it takes the state from; None: it has it."""
    next: int | None = None
    """The rank on the next node that it hands the state on to, piece by piece."""
    mates: tuple[int, ...] = ()
    """Other takers on its node, which it shares memory with."""
    shares: bool = False
    """It is such a mate of its source."""


def arrange_chain(giver: int, takers: Sequence[int], nodes: Sequence[str]) -> dict[int, Relay]:
    """Return the parts in a chain by rank: of the giver and of each taker.

    Each node takes the state from one other rank and hands it to at most one more node, so that
    the last of n nodes has it once the bytes have crossed one network link, and n - 1 pieces more.

    Args:
        giver: the rank that has the state.
        takers: the ranks that lack it.
        nodes: by rank, names of the nodes, whose ranks can share memory.
    """
    by_node: dict[str, list[int]] = {nodes[giver]: []}
    for rank in sorted(takers):
        by_node.setdefault(nodes[rank], []).append(rank)
    # The giver's own node first: what it takes doesn't cross the network.
    groups = [ranks for ranks in by_node.values() if ranks]
    heads = [ranks[0] for ranks in groups]
    chain = [giver, *heads]
    parts = {giver: Relay(None, heads[0] if heads else None)}
    for place, (head, *mates) in enumerate(groups, start=1):
        following = chain[place + 1] if place + 1 < len(chain) else None
        parts[head] = Relay(chain[place - 1], following, tuple(mates))
        parts |= {mate: Relay(head, shares=True) for mate in mates}
    return parts
