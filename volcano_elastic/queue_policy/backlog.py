"""Claims of jobs and gangs that have not started, in order, kept from plan to plan.

Of thousands that wait most are like many others of their queue, and what one of them is told goes
for those behind it until room changes hands: so they stand in one line a kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from volcano_elastic.queue_policy.claims import Claim, Group, Order
from volcano_elastic.queue_policy.ranking import Ranking

Waiting = tuple[Order, Claim]


class Kind(NamedTuple):
    """All that whether a claim can be served depends on, besides whose turn it is."""

    queue: str
    groups: tuple[Group, ...]
    unmodelled: str


class Backlog:
    def __init__(self) -> None:
        self.lines: dict[Kind, Ranking[Waiting]] = {}
        self._held: dict[str, tuple[Kind, Waiting]] = {}
        self._changed: set[Kind] = set()
        """Since `settle`."""
        self._told: dict[Kind, dict[str, str]] = {}
        self.requests: dict[str, list[int]] = {}
        """By queue, what its claims ask for together."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Claim | None:
        found = self._held.get(key)
        return None if found is None else found[1][1]

    def put(self, claim: Claim) -> None:
        kind = Kind(claim.queue, claim.groups, claim.unmodelled)
        waiting = (claim.order, claim)
        self._held[claim.key] = (kind, waiting)
        line = self.lines.get(kind)
        if line is None:
            line = self.lines[kind] = Ranking()
        line.put(waiting)
        self._note(kind, claim, 1)

    def remove(self, key: str) -> None:
        found = self._held.pop(key, None)
        if found is not None:
            kind, waiting = found
            self.lines[kind].remove(waiting)
            self._note(kind, waiting[-1], -1)

    def settle(self) -> None:
        """Bring the lines up to date with what was put and removed."""
        for kind in self._changed:
            self.lines[kind].settle()
            if not self.lines[kind].entries:
                del self.lines[kind]
        self._changed.clear()

    def told(self, kind: Kind, why: str) -> Mapping[str, str]:
        """`why` by the keys of all of a kind: mostly they are told what they were told before."""
        found = self._told.get(kind)
        if found is None or next(iter(found.values())) != why:
            keys = (claim.key for _, claim in self.lines[kind].entries)
            found = self._told[kind] = dict.fromkeys(keys, why)
        return found

    def _note(self, kind: Kind, claim: Claim, sign: int) -> None:
        self._changed.add(kind)
        self._told.pop(kind, None)
        request = claim.request
        total = self.requests.setdefault(claim.queue, [0] * len(request))
        for i, amount in enumerate(request):
            total[i] += sign * amount
