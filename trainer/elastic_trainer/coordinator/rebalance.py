"""Decides which ranks take fewer samples of a step, by how fast each is by itself; pure.

A rank that is named as slow gets what it does in the time in which the others do theirs. Its share
is changed again once it was another for `CONFIRMED` windows in a row, as speeds vary, and given
back likewise: each change is a round of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.straggler import CONFIRMED, Key, Pace

FULL = 1000
"""The share of a rank that takes as much as most do, as data/division.py's."""
LEAST = 250
"""The least share: what doesn't depend on the samples isn't saved by taking fewer."""
BACK = 0.9
"""Part of the others' speed from which on a rank takes as much as they do."""
TOLERANCE = 0.2
"""A share is kept while the speed is so near to it."""
SELDOM = 6
"""Windows from one change to the next, at least."""


@dataclass(frozen=True)
class Shares:
    """Each rank's share."""

    given: Mapping[Key, int] = field(default_factory=dict)
    """Shares of ranks that take less than `FULL`, in the round, or in the next if `due`."""
    due: bool = False
    """The round's ranks go by other ones."""
    streaks: Mapping[Key, int] = field(default_factory=dict)
    """Windows in a row in which a rank's share was to be another."""
    changed: float = float("-inf")

    def window(
        self, paces: Mapping[Key, Pace], named: Collection[Key], now: float, seconds: float
    ) -> Shares:
        """Return the shares after a window of at least `seconds` in which ranks had these paces."""
        if self.due:
            return self
        wanted = wanted_shares(paces, self.given, named)
        streaks = {
            key: self.streaks.get(key, 0) + 1
            for key, share in wanted.items()
            if share != self.given.get(key, FULL)
        }
        if not streaks or now < self.changed + SELDOM * seconds:
            return replace(self, streaks=streaks)
        # Who is named was slow in as many windows already.
        sure = {
            key
            for key, streak in streaks.items()
            if streak >= CONFIRMED or (key in named and key not in self.given)
        }
        if not sure:
            return replace(self, streaks=streaks)
        changed = {key: wanted[key] for key in sure}
        given = {key: one for key, one in {**self.given, **changed}.items() if one < FULL}
        return Shares(given, True, {}, now)

    def begun(self, members: Collection[Key]) -> Shares:
        """Return those of a round that begins with these ranks."""
        given = {key: share for key, share in self.given.items() if key in members}
        return replace(self, given=given, due=False, streaks={})


def wanted_shares(
    paces: Mapping[Key, Pace], given: Mapping[Key, int], named: Collection[Key]
) -> dict[Key, int]:
    """Return the share that each rank would have by its speed in a window."""
    by_sample = {key: pace.own / pace.samples for key, pace in paces.items()}
    ordered = sorted(by_sample.values())
    usual = median(ordered[:-1] or ordered) if ordered else 0.0  # up to half of them may be slow
    found = {}
    for key, seconds in by_sample.items():
        speed = usual / seconds if seconds > 0 else 1.0
        share = given.get(key, FULL)
        if (key not in given and key not in named) or speed >= BACK:
            found[key] = FULL
        elif key in given and abs(speed * FULL - share) <= TOLERANCE * share:
            found[key] = share
        else:
            found[key] = max(LEAST, round(speed * FULL))
    return found
