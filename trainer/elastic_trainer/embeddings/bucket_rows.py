"""BucketRows: rows by id, of which each bucket's lie side by side.

A bucket has room for r rows, a power of two, from row r (1024 + bucket) on: so buckets of one room
lie in [1024 r, 2048 r), and one that needs more moves to where twice as much is, by itself, without
a look at all others. Twice as many slots, from slot 2 r (1024 + bucket) on, tell an id's row: an
open-addressing hash table whose probes are vectorized, and which ends where its bucket does. What
no bucket uses takes no memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.column import Column
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, Words, buckets, buckets_of, hash_ids

Rows = NDArray[np.int64]
Buckets = NDArray[np.int64]
Memory = NDArray[np.uint8]

NO_ROW = 0
"""The row of an id that isn't here; also a slot that is free."""
_GONE = 1
"""In the slot of an id that was removed."""
_SMALLEST = 2
_AT_ONCE = 1 << 15
"""Rows whose slots are filled at once, so that these stay in a core's cache."""


class BucketRows:
    """Columns of numbers, and the row in them of each id.

    Row numbers hold until rows are added or removed.

    Args:
        columns: by name, dtype and how many numbers a row has; None: one, without a dimension.
    """

    def __init__(self, **columns: tuple[Any, int | None]) -> None:
        self.columns = {name: Column(*kind) for name, kind in columns.items()}
        self._ids, self._slots = Column(np.int64), Column(np.int64)
        self._all = (self._ids, *self.columns.values())
        self._first, self._room, self._used, self._gone, self._mask = (
            np.zeros(BUCKETS, dtype=np.int64) for _ in range(5)
        )
        self._moves = 0
        """How often rows of a bucket came to lie elsewhere."""
        self._grow(_SMALLEST)

    def __len__(self) -> int:
        return int(self._used.sum())

    def __deepcopy__(self, memo: dict[int, Any]) -> BucketRows:
        found = BucketRows(**{name: one.kind for name, one in self.columns.items()})
        rows = self.rows()
        there = found.add(self._ids.numbers[rows])
        for name, column in self.columns.items():
            found.columns[name].numbers[there] = column.numbers[rows]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use, and of the slots."""
        slots = 2 * int(self._room.sum())
        return len(self) * self.row_bytes + slots * self._slots.row_bytes

    @property
    def counts(self) -> Rows:
        """Return how many ids there are of each bucket."""
        return self._used

    def ids(self, rows: Rows) -> Ids:
        return self._ids.numbers[rows]

    def rows(self, wanted: Buckets | None = None) -> Rows:
        """Return all rows in use, or those of these buckets, bucket by bucket."""
        if wanted is None:
            return _runs(self._first, self._used)
        return _runs(self._first[wanted], self._used[wanted])

    def find(self, ids: Ids, words: Words | None = None) -> Rows:
        """Return each id's row, NO_ROW where it has none.

        Args:
            words: their hashes, where these are known.
        """
        return self._look_up(ids, words)[1]

    def add(self, ids: Ids) -> Rows:
        """Return a row for each of these ids, which have none and differ from one another. What it
        has in it is anything."""
        bucket = buckets(ids)
        count = np.bincount(bucket, minlength=BUCKETS)
        full = np.flatnonzero(self._used + self._gone + count > self._room)
        if len(full):
            self._make_room(full, self._used[full] + count[full])
        rows = np.empty(len(ids), dtype=np.int64)
        rows[_order(bucket)] = _runs(self._first + self._used, count)
        self._used += count
        self._ids.numbers[rows] = ids
        self._insert(ids, rows)
        return rows

    def put(self, ids: Ids) -> Rows:
        """Return a row for each of these ids, which differ from one another, a new one where it
        has none."""
        rows = self.find(ids)
        new = rows == NO_ROW
        if not new.any():
            return rows
        moves = self._moves
        rows[new] = self.add(ids[new])
        return rows if moves == self._moves else self.find(ids)

    def remove(self, ids: Ids) -> None:
        """Forget these ids, which are here and differ from one another; the last rows of their
        buckets take their places."""
        slots, gone = self._look_up(ids)
        bucket = buckets(ids)
        count = np.bincount(bucket, minlength=BUCKETS)
        self._slots.numbers[slots] = _GONE
        self._gone += count
        self._used -= count
        ends = self._first + self._used
        order = _order(bucket)
        inside = gone[order] < ends[bucket[order]]
        holes = gone[order][inside]
        last = _runs(ends, count)
        last = last[~np.isin(last, gone[order][~inside], assume_unique=True)]
        slots, _ = self._look_up(self._ids.numbers[last])
        self._slots.numbers[slots] = holes
        for one in self._all:
            one.numbers[holes] = one.numbers[last]

    # ---- whole buckets, as they lie

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, its id's included."""
        return sum(self.column_bytes)

    @property
    def column_bytes(self) -> list[int]:
        """Bytes of an id, and of each column's numbers in a row."""
        return [one.row_bytes for one in self._all]

    def lying(self, bucket: int, begin: int, end: int) -> list[Memory]:
        """Return the memory of a bucket's rows `begin` to `end`, that of ids first, then each
        column's. Nobody may keep it until rows are added."""
        first = int(self._first[bucket])
        return [one.bytes(first + begin, first + end) for one in self._all]

    def reserve(self, which: Buckets, counts: Rows) -> None:
        """Have room for so many rows in each of these buckets, which have none, for `lying` to
        show and `hold` to make known."""
        some = counts > 0
        if not some.any():
            return
        self._make_room(which[some], counts[some])
        for bucket, count in zip(which[some].tolist(), counts[some].tolist(), strict=True):
            first, room = int(self._first[bucket]), int(self._room[bucket])
            self._slots.take_memory(2 * first, 2 * (first + room))
            for one in self._all:
                one.take_memory(first, first + count)

    def hold(self, which: Buckets, counts: Rows) -> None:
        """Hold the rows that were written into reserved room, so many of each bucket."""
        if not counts.any():
            return
        self._used[which] = counts
        ends = np.cumsum(counts)
        for some in np.split(which, np.flatnonzero(np.diff(ends // _AT_ONCE)) + 1):
            rows = self.rows(some)
            self._insert(self._ids.numbers[rows], rows)

    def copy(self, other: BucketRows, which: Buckets) -> None:
        """Hold what another one with these columns has of buckets of which nothing is here."""
        counts = other.counts[which]
        self.reserve(which, counts)
        for bucket, count in zip(which.tolist(), counts.tolist(), strict=True):
            there = other.lying(bucket, 0, count)
            for mine, part in zip(self.lying(bucket, 0, count), there, strict=True):
                mine[:] = part
        self.hold(which, counts)

    def drop(self, given: Buckets) -> None:
        """Hold nothing of these buckets, and give their memory back."""
        self._clear(given)
        for part in (self._first, self._room, self._used, self._gone, self._mask):
            part[given] = 0

    # ---- rooms

    def _make_room(self, full: Buckets, need: Rows) -> None:
        """Have these buckets room for so many rows, and some more."""
        self._moves += 1
        used = self._used[full]
        # A fourth beyond, so that slots of removed ids aren't cleared at each addition.
        bits = np.ceil(np.log2(np.maximum(need * 5 // 4, _SMALLEST))).astype(np.int64)
        room = np.where(need * 5 // 4 <= self._room[full], self._room[full], 1 << bits)
        self._grow(int(room.max()))
        rows = _runs(self._first[full], used)
        kept = [one.numbers[rows] for one in self._all]
        self._clear(full)
        self._room[full], self._first[full] = room, room * (BUCKETS + full)
        self._mask[full], self._gone[full] = 2 * room - 1, 0
        rows = _runs(self._first[full], used)
        for one, part in zip(self._all, kept, strict=True):
            one.numbers[rows] = part
        self._insert(kept[0], rows)

    def _grow(self, room: int) -> None:
        if 2 * BUCKETS * room > len(self._ids.numbers):
            self._slots.grow(4 * BUCKETS * room)
            for one in self._all:
                one.grow(2 * BUCKETS * room)

    def _clear(self, which: Buckets) -> None:
        for bucket in which[self._room[which] > 0].tolist():
            first, room = int(self._first[bucket]), int(self._room[bucket])
            self._slots.clear(2 * first, 2 * (first + room))
            for one in self._all:
                one.clear(first, first + room)

    # ---- slots

    def _first_slots(self, ids: Ids, words: Words | None = None) -> tuple[Rows, Rows]:
        """Return where each id is looked for first, and its bucket's slots less one."""
        words = hash_ids(ids) if words is None else words
        bucket = buckets_of(words)
        mask = self._mask[bucket]
        return 2 * self._first[bucket] + (words.view(np.int64) & mask), mask

    def _look_up(self, ids: Ids, words: Words | None = None) -> tuple[Rows, Rows]:
        """Return the slot and the row of each id."""
        slots, mask = self._first_slots(ids, words)
        rows = _taken(self._slots.numbers, slots)
        left = np.flatnonzero(self._are_others(rows, ids))
        at, mask, wanted = slots[left], mask[left], ids[left]
        while len(left):
            at = _next(at, mask)
            slots[left] = at
            rows[left] = found = _taken(self._slots.numbers, at)
            still = self._are_others(found, wanted)
            left, at, mask, wanted = left[still], at[still], mask[still], wanted[still]
        return slots, rows

    def _are_others(self, rows: Rows, ids: Ids) -> NDArray[np.bool_]:
        """Tell which of these rows, read from slots, end no search: other ids', or gone."""
        others = (_taken(self._ids.numbers, rows) != ids) | (rows == _GONE)
        found: NDArray[np.bool_] = others & (rows != NO_ROW)
        return found

    def _insert(self, ids: Ids, rows: Rows) -> None:
        slots, mask = self._first_slots(ids)
        there = self._slots.numbers
        while len(rows):
            free = there[slots] == NO_ROW
            there[slots[free]] = rows[free]  # of several for one slot, one remains
            lost = there[slots] != rows
            rows, mask = rows[lost], mask[lost]
            slots = _next(slots[lost], mask)


def _taken(numbers: Rows, places: Rows) -> Rows:
    """Return the numbers at these places, any for a negative one: a fifth quicker than what looks
    for places outside."""
    found: Rows = numbers.take(places, mode="clip")
    return found


def _next(slots: Rows, mask: Rows) -> Rows:
    return (slots & ~mask) | ((slots + 1) & mask)


def _order(bucket: Buckets) -> Rows:
    """Return what sorts by bucket, and leaves those of one bucket in their order."""
    return np.argsort(bucket.astype(np.int16), kind="stable")


def _runs(first: Rows, count: Rows) -> Rows:
    """Return the numbers from each first one on, so many of each."""
    ends = np.cumsum(count)
    return np.repeat(first - ends + count, count) + np.arange(ends[-1] if len(ends) else 0)
