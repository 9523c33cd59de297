"""HotIds: the ids of a table's rows that are seen most often, found some buckets at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.embeddings.table import Table


class HotIds:
    """Args:
    steps: only rows that were seen in so many of the last steps count.
    most: ids.
    """

    def __init__(self, table: Table, steps: int, most: int) -> None:
        self._table, self._steps, self._most = table, steps, most
        self._seen: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.ids: Ids = np.empty(0, dtype=np.int64)
        """Hot ids of the buckets that were looked into so far, ascending."""

    def look_into(self, buckets: NDArray[np.int64]) -> None:
        """Have these buckets' hot ids, too, in place of others that are seen less often."""
        ids, seen = self._table.hot_ids_in(buckets.tolist(), self._steps, self._most)
        ids, seen = np.concatenate([self.ids, ids]), np.concatenate([self._seen, seen])
        if len(ids) > self._most:
            first = len(ids) - self._most
            hottest = np.argpartition(seen, first)[first:]
            ids, seen = ids[hottest], seen[hottest]
        order = np.argsort(ids)
        self.ids, self._seen = ids[order], seen[order]

    def left_out(self, ids: Ids) -> Ids:
        """Return those of these ids that aren't hot."""
        if not len(self.ids):
            return ids
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        differ: NDArray[np.bool_] = self.ids[place] != ids
        return ids[differ]
