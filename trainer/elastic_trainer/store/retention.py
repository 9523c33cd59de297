"""Decides which directories of a storage may go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Condition(Enum):
    COMPLETE = "its marker verifies"
    INCOMPLETE = "it has no marker, and a note that it was being written or removed"
    UNMARKED = "it has neither, so who made it, or what became of its marker, isn't known"
    DAMAGED = "its marker, or a file that was read, isn't what was written"
    UNREADABLE = "its marker can't be read now"


@dataclass(frozen=True, slots=True)
class Found:
    condition: Condition
    identity: tuple[int, int] = (0, 0)
    """Run and step of a complete one."""


def removable(
    found: Mapping[str, Found],
    keep: int,
    needs: Mapping[tuple[int, int], frozenset[str]] = MappingProxyType({}),
) -> list[str]:
    """Return the names to remove, oldest first, so that the newest `keep` complete ones stay; where
    all of these need one thing, so does the newest that doesn't.

    Nothing that couldn't be read, or isn't known to be this trainer's, is among them; nor, while
    there are fewer than `keep` complete ones, anything at all: what is damaged or unfinished may be
    all there is to look at.

    Args:
        needs: by run and step, what a commit needs beside its own files.
    """

    def needed(name: str) -> frozenset[str]:
        return needs.get(found[name].identity, frozenset())

    complete = sorted(
        (name for name, one in found.items() if one.condition is Condition.COMPLETE),
        key=lambda name: found[name].identity,
    )
    if len(complete) < keep:
        return []
    others = (Condition.INCOMPLETE, Condition.DAMAGED)
    goes, stays = complete[:-keep], complete[-keep:]
    for one in sorted(frozenset.intersection(*map(needed, stays))):
        if without := [name for name in goes if one not in needed(name)]:
            goes.remove(without[-1])
    return [name for name, one in found.items() if one.condition in others] + goes
