"""Candidates: ids that were seen, but not often enough for a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.embeddings.row_index import RowIndex

Counts = NDArray[np.int64]


class Candidates:
    """Counts by id. One that was taken out has a count of 0 until `keep` tidies up."""

    def __init__(self) -> None:
        self._index = RowIndex()
        self._ids = self._seen = self._last = np.empty(0, dtype=np.int64)
        self._used = 0

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + 3 * 8 * self._used

    def count(self, ids: Ids, seen: Counts, step: int, enough: int) -> tuple[Counts, Counts]:
        """Count ids, no two alike; take those out that were seen `enough` times by now.

        Returns:
            The places of these in `ids`, and how often each was seen before.
        """
        places = self._index.find(ids)
        new = places < 0
        places[new] = self._append(ids[new])
        before = self._seen[places]
        total = before + seen
        done = total >= enough
        self._seen[places] = np.where(done, 0, total)
        self._last[places] = step
        return np.flatnonzero(done), before[done]

    def entries(self) -> tuple[Ids, Counts, Counts]:
        """Return ids in order, how often each was seen, and at which step last."""
        held = np.flatnonzero(self._seen[: self._used])
        order = held[np.argsort(self._ids[held])]
        return self._ids[order], self._seen[order], self._last[order]

    def entries_of(self, ids: Ids) -> tuple[Ids, Counts, Counts]:
        """Return those of these ids that are here, how often each was seen, and when last."""
        places = self._index.find(ids)
        here = places >= 0
        here[here] = self._seen[places[here]] > 0
        return ids[here], self._seen[places[here]], self._last[places[here]]

    def forget(self, ids: Ids) -> None:
        places = self._index.find(ids)
        self._seen[places[places >= 0]] = 0

    def put(self, ids: Ids, seen: Counts, last: Counts) -> None:
        """Hold these, too, which aren't held yet."""
        own = self.entries()
        pairs = zip(own, (ids, seen, last), strict=True)
        self.replace(*(np.concatenate(pair) for pair in pairs))

    def replace(self, ids: Ids, seen: Counts, last: Counts) -> None:
        """Hold these and nothing else."""
        self._ids, self._seen, self._last = ids, seen, last
        self._used = len(ids)
        self._index.keep(ids, np.arange(len(ids), dtype=np.int64))

    def _append(self, ids: Ids) -> NDArray[np.int64]:
        begin, self._used = self._used, self._used + len(ids)
        if self._used > len(self._ids):
            room = max(self._used, 2 * len(self._ids))
            self._ids, self._seen, self._last = (
                np.concatenate([part, np.zeros(room - len(part), dtype=np.int64)])
                for part in (self._ids, self._seen, self._last)
            )
        places = np.arange(begin, self._used, dtype=np.int64)
        self._ids[places] = ids
        self._seen[places] = 0
        self._index.insert(ids, places)
        return places
