"""Which parts of a sharded state are copied to which ranks before nodes leave. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COPIES = 2
"""Nodes that each part is to be on."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A part's way to another rank's memory."""

    owner: int
    """The rank whose part it is."""
    giver: int
    taker: int


def plan_copies(stays: Sequence[bool], distance: int) -> list[Copy] | None:
    """Return the copies after which each rank's part is on two nodes that stay, in an order that
    all ranks follow; None where fewer than two stay.

    Args:
        stays: by rank, whether what is in its node's memory will be there; alike on all ranks of a
            node. Each part is with its rank and with that rank's place on the next node.
        distance: ranks of each node.
    """
    world = len(stays)
    if sum(stays) < COPIES * distance:
        return None
    copies = []
    for owner in range(world):
        there = [owner, (owner + distance) % world]
        lacking = COPIES - sum(stays[rank] for rank in there)
        for steps in range(2, world // distance):
            taker = (owner + steps * distance) % world
            if lacking and stays[taker]:
                copies.append(Copy(owner, owner, taker))
                lacking -= 1
    return copies
