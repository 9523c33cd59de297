"""RowIndex: from id to row, an open-addressing hash table whose probes are vectorized."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids, hash_ids

Rows = NDArray[np.int64]

EMPTY, GONE = -1, -2
"""Keys of a free slot, and of one whose id was removed: ids aren't negative."""
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
        slots, here = self._slots(ids)
        return np.where(here, self._rows[slots], -1)

    def remove(self, ids: Ids) -> None:
        """Forget ids that are here and differ from one another. Costs what these cost, however many
        there are."""
        if len(ids) == self._count:
            self._clear(_SMALLEST)
            return
        slots, _ = self._slots(ids)
        self._keys[slots] = GONE
        self._count -= len(ids)
        self._gone += len(ids)

    def insert(self, ids: Ids, rows: Rows) -> None:
        """Give rows to ids that have none and differ from one another."""
        if 2 * (self._count + self._gone + len(ids)) > len(self._keys):
            kept = self._keys >= 0
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
        self._count = self._gone = 0

    def _first_slots(self, ids: Ids) -> NDArray[np.int64]:
        return (hash_ids(ids) & np.uint64(self._mask)).view(np.int64)

    def _slots(self, ids: Ids) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the slot of each id, and whether it is there."""
        slots = self._first_slots(ids)
        found = self._keys[slots]
        here = found == ids
        left = np.flatnonzero(~here & (found != EMPTY))
        while len(left):
            slots[left] = (slots[left] + 1) & self._mask
            found = self._keys[slots[left]]
            hit = found == ids[left]
            here[left[hit]] = True
            left = left[~hit & (found != EMPTY)]
        return slots, here

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
