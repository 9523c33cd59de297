"""Candidates: ids that were seen, but not often enough for a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.bucket_rows import NO_ROW, BucketRows, Buckets, Rows
from elastic_trainer.embeddings.hashing import Ids

Counts = NDArray[np.int64]


class Candidates:
    """Counts by id, and the step at which each was seen last."""

    def __init__(self) -> None:
        self.rows = BucketRows(seen=(np.int64, None), last=(np.int64, None))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @property
    def counts(self) -> Counts:
        """Return how many ids there are of each bucket."""
        return self.rows.counts

    def count(self, ids: Ids, seen: Counts, step: int, enough: int) -> tuple[Counts, Counts]:
        """Count ids, no two alike; take those out that were seen `enough` times by now.

        Returns:
            The places of these in `ids`, and how often each was seen before.
        """
        rows = self.rows.find(ids)
        before = np.where(rows == NO_ROW, 0, self.rows.columns["seen"].numbers[rows])
        done = before + seen >= enough
        self.rows.remove(ids[done & (rows != NO_ROW)])
        stays = ~done
        self.put(ids[stays], (before + seen)[stays], np.full(int(stays.sum()), step))
        return np.flatnonzero(done), before[done]

    def entries(self, wanted: Buckets | None = None) -> tuple[Ids, Counts, Counts]:
        """Return ids in order, how often each was seen, and at which step last."""
        rows = self.rows.rows(wanted)
        return self._read(rows[np.argsort(self.rows.ids(rows))])

    def ids(self, wanted: Buckets) -> Ids:
        return self.rows.ids(self.rows.rows(wanted))

    def entries_of(self, ids: Ids) -> tuple[Ids, Counts, Counts]:
        """Return those of these ids that are here, how often each was seen, and when last."""
        rows = self.rows.find(ids)
        return self._read(rows[rows != NO_ROW])

    def forget(self, ids: Ids) -> None:
        """Forget those of these ids that are here."""
        if len(self.rows):
            self.rows.remove(ids[self.rows.find(ids) != NO_ROW])

    def put(self, ids: Ids, seen: Counts, last: Counts) -> None:
        """Hold these, whatever is held of them."""
        rows = self.rows.put(ids)
        self.rows.columns["seen"].numbers[rows] = seen
        self.rows.columns["last"].numbers[rows] = last

    def drop(self, given: Buckets) -> None:
        self.rows.drop(given)

    def _read(self, rows: Rows) -> tuple[Ids, Counts, Counts]:
        columns = self.rows.columns
        return self.rows.ids(rows), columns["seen"].numbers[rows], columns["last"].numbers[rows]
