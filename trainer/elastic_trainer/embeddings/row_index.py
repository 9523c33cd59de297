"""RowIndex: from id to row, an open-addressing hash table whose probes are vectorized."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids, hash_ids

Rows = NDArray[np.int64]

EMPTY = -1
"""The key of a free slot: ids aren't negative."""
_SMALLEST = 1 << 8


class RowIndex:
    """Half of its slots are free at least, so a look-up takes 1.5 probes on average."""

    def __init__(self) -> None:
        self._clear(_SMALLEST)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return int(self._keys.nbytes + self._rows.nbytes)

    def find(self, ids: Ids) -> Rows:
        """Return each id's row; -1 where it has none."""
        slots = self._first_slots(ids)
        found = self._keys[slots]
        rows = np.where(found == ids, self._rows[slots], -1)
        left = np.flatnonzero((found != ids) & (found != EMPTY))
        while len(left):
            slots[left] = (slots[left] + 1) & self._mask
            here, wanted = slots[left], ids[left]
            found = self._keys[here]
            hit = found == wanted
            rows[left[hit]] = self._rows[here[hit]]
            left = left[~hit & (found != EMPTY)]
        return rows

    def insert(self, ids: Ids, rows: Rows) -> None:
        """Give rows to ids that have none and differ from one another."""
        if 2 * (self._count + len(ids)) > len(self._keys):
            kept = self._keys != EMPTY
            old, their_rows = self._keys[kept], self._rows[kept]
            self._clear(1 << int(2 * (self._count + len(ids)) - 1).bit_length())
            self._put(old, their_rows)
        self._put(ids, rows)

    def keep(self, ids: Ids, rows: Rows) -> None:
        """Hold these from now on, and nothing else."""
        self._clear(max(_SMALLEST, 1 << int(2 * len(ids) - 1).bit_length() if len(ids) else 0))
        self._put(ids, rows)

    def _clear(self, slots: int) -> None:
        self._keys = np.full(slots, EMPTY, dtype=np.int64)
        self._rows = np.empty(slots, dtype=np.int64)
        self._mask = slots - 1
        self._count = 0

    def _first_slots(self, ids: Ids) -> NDArray[np.int64]:
        return (hash_ids(ids) & np.uint64(self._mask)).view(np.int64)

    def _put(self, ids: Ids, rows: Rows) -> None:
        self._count += len(ids)
        slots = self._first_slots(ids)
        while len(ids):
            free = self._keys[slots] == EMPTY
            self._keys[slots[free]] = ids[free]  # of several for one slot, one remains
            won = self._keys[slots] == ids
            self._rows[slots[won]] = rows[won]
            lost = ~won
            ids, rows, slots = ids[lost], rows[lost], (slots[lost] + 1) & self._mask
