"""Decides which of an elastic job's pods Volcano may not evict: the vital ones, and as many others
as the minimum needs. Pods are promoted before anything is created, demoted last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that is there to stay."""

    name: str
    vital: bool
    """The job can't do without this very pod."""
    rank: int
    """Its place in falling task priority."""
    protected: bool
    running: bool


@dataclass(frozen=True, slots=True)
class Change:
    promote: tuple[str, ...] = ()
    demote: tuple[str, ...] = ()


def rebalance(members: Sequence[Member], count: int, *, demote: bool) -> Change:
    """Return what makes the protected ones `count`, with all vital ones among them.

    While a vital one is missing, another holds the minimum in its place; the surplus is
    taken off the others once it is back. `demote` False leaves any surplus of protection alone.
    """
    protected = [m for m in members if m.protected]
    promote = [m for m in members if m.vital and not m.protected]
    short = count - len(protected) - len(promote)
    if short > 0:
        others = [m for m in members if not m.protected and not m.vital]
        # A running pod holds what the minimum needs; a pending one holds nothing yet.
        others.sort(key=lambda m: (not m.running, m.rank))
        promote += others[:short]
    surplus: list[Member] = []
    if demote and not promote and len(protected) > count:
        giving = sorted((m for m in protected if not m.vital), key=lambda m: (m.running, -m.rank))
        surplus = giving[: len(protected) - count]
    return Change(tuple(m.name for m in promote), tuple(m.name for m in surplus))
