"""IdSamples: which ids samples have most often, as far as some of them show; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids

KNOWN = 512
"""Ids that are counted at a time."""
LEAST = 1e-6
"""Counts that are forgotten, halved again and again."""
OF_A_REQUEST = 16
"""Counted of each request or step: those that come most often."""


class IdSamples:
    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._all = 0.0

    def add(self, ids: Ids, seen: NDArray[np.int64]) -> None:
        """Take in how often each of these ids came."""
        self._all += float(seen.sum())
        most = np.argsort(-seen, kind="stable")[:OF_A_REQUEST]
        known = self._known
        for number, count in zip(ids[most].tolist(), seen[most].tolist(), strict=True):
            known[number] = known.get(number, 0.0) + count
        if len(known) > KNOWN:
            kept = sorted(known, key=known.__getitem__, reverse=True)[: KNOWN // 2]
            self._known = {number: known[number] for number in kept}

    def hot(self, most: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the ids that come most often, at most so many, and their shares of all."""
        known = self._known
        if not self._all:
            return (), ()
        hot = sorted(known, key=lambda number: (-known[number], number))[:most]
        return tuple(hot), tuple(round(known[number] / self._all, 6) for number in hot)

    def halve(self) -> None:
        """Let what was so far count half as much, and nothing once that is next to nothing."""
        self._known = {number: count / 2 for number, count in self._known.items() if count > LEAST}
        self._all = self._all / 2 if self._all > LEAST else 0.0
