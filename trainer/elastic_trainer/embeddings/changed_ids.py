"""ChangedIds: the ids of a table that were changed since they were last asked for."""

from __future__ import annotations

import numpy as np

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.embeddings.table import Table

COMPACT = 1 << 19
"""So many ids are kept as they come, before those that came twice are dropped."""


def distinct(ids: Ids) -> Ids:
    """Return each of these once, ascending: np.unique takes ten times as long for some ascending
    runs, one after the other."""
    ids = np.sort(ids, kind="stable")
    new = np.ones(len(ids), dtype=bool)
    np.not_equal(ids[1:], ids[:-1], out=new[1:])
    return ids[new]


class ChangedIds:
    """Watches a table from now on, until `stop`. Takes memory for each id but once or twice."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._touched: list[Ids] = []
        self._size, self._most = 0, COMPACT
        table.watchers.append(self._add)

    def take(self) -> Ids:
        """Return those since the last time, each once, ascending."""
        if not self._touched:
            return np.empty(0, dtype=np.int64)
        ids = distinct(np.concatenate(self._touched))
        self._touched, self._size, self._most = [], 0, COMPACT
        return ids

    def stop(self) -> None:
        self.table.watchers.remove(self._add)

    def _add(self, ids: Ids) -> None:
        self._touched.append(ids.copy())
        self._size += len(ids)
        if self._size > self._most:
            self._touched = [distinct(np.concatenate(self._touched))]
            self._size = len(self._touched[0])
            self._most = max(COMPACT, 2 * self._size)  # so that it isn't done for each batch
