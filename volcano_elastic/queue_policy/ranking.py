"""Entries in order, kept from plan to plan, and one plan's way through them.

An entry is a tuple whose comparison is decided before its last item, the job: by the job's key at
the latest.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

FEW = 16
"""Up to so many changes a ranking is mended; after more it is sorted anew."""

E = TypeVar("E", bound=tuple[Any, ...])


class Ranking(Generic[E]):
    """Who goes first is in front. What is put and removed counts from the next `settle` on."""

    __slots__ = ("_come", "_gone", "entries")

    def __init__(self) -> None:
        self.entries: list[E] = []
        self._come: list[E] = []
        self._gone: list[E] = []

    def put(self, entry: E) -> None:
        self._come.append(entry)

    def remove(self, entry: E) -> None:
        """This very entry, which has been put."""
        self._gone.append(entry)

    def settle(self) -> None:
        entries, gone, come = self.entries, self._gone, self._come
        if len(gone) + len(come) < FEW:
            for found in gone:
                at = bisect_left(entries, found[:-1])
                if at < len(entries) and entries[at] is found:
                    del entries[at]
                else:
                    # It came and went since the last time.
                    come = [other for other in come if other is not found]
            for found in come:
                insort(entries, found)
        else:
            out = set(map(id, gone))
            entries[:] = [found for found in (*entries, *come) if id(found) not in out]
            entries.sort()
        self._gone, self._come = [], []


class Line(Generic[E]):
    """Those of a ranking that have not had a turn in this plan, and those that stand in line again,
    at another place perhaps. The ranking itself stays as it is."""

    __slots__ = ("_again", "_at", "_entries")

    def __init__(self, entries: Sequence[E] = ()) -> None:
        self._entries, self._at = entries, 0
        self._again: list[E] = []

    def head(self) -> E | None:
        fresh = self._entries[self._at] if self._at < len(self._entries) else None
        if self._again and (fresh is None or self._again[0] < fresh):
            return self._again[0]
        return fresh

    def pop(self) -> E:
        """The head, which there must be."""
        if self._again and self.head() is self._again[0]:
            return heapq.heappop(self._again)
        self._at += 1
        return self._entries[self._at - 1]

    def push(self, entry: E) -> None:
        heapq.heappush(self._again, entry)
