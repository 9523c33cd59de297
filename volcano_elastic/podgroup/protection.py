"""Which of an elastic job's pods Volcano may not evict: worker 0 (and the Master) and as many
others as the minimum needs. Promoted before anything is created, demoted last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that is there to stay."""

    name: str
    rank: int
    """The Master or worker 0 is 0; falling task priority."""
    protected: bool
    running: bool


@dataclass(frozen=True, slots=True)
class Change:
    promote: tuple[str, ...] = ()
    demote: tuple[str, ...] = ()


def rebalance(members: Sequence[Member], count: int, *, demote: bool) -> Change:
    """What makes the protected ones `count`, with rank 0 among them where it lives.

    While rank 0 is missing, `count` others hold the minimum in its place; the surplus is
    taken off them once it is back. `demote` False leaves any surplus of protection alone.
    """
    protected = [m for m in members if m.protected]
    promote = [m for m in members if m.rank == 0 and not m.protected]
    short = count - len(protected) - len(promote)
    if short > 0:
        others = [m for m in members if not m.protected and m.rank != 0]
        # A running pod holds what the minimum needs; a pending one holds nothing yet.
        others.sort(key=lambda m: (not m.running, m.rank))
        promote += others[:short]
    surplus: list[Member] = []
    if demote and not promote and len(protected) > count:
        giving = sorted((m for m in protected if m.rank != 0), key=lambda m: (m.running, -m.rank))
        surplus = giving[: len(protected) - count]
    return Change(tuple(m.name for m in promote), tuple(m.name for m in surplus))
