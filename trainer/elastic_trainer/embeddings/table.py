"""Table: the rows of the buckets that this process holds, and all that belongs to a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings.bucket_rows import NO_ROW, BucketRows, Rows
from elastic_trainer.embeddings.candidates import Candidates
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, Words, buckets, first_values
from elastic_trainer.embeddings.row_optimizer import RowOptimizer

AWAKE = -1
"""No step: of a bucket that doesn't rest."""


@dataclass(frozen=True)
class TableSettings:
    """Settings of a table, the same on all ranks and for its whole life, but for the learning rate.

    Args:
        name: of the table; its rows' first values depend on it.
        width: numbers in a row.
        optimizer: of its rows.
        seed: of the rows' first values.
        bound: these are uniform in [-bound, bound); None: 1 / sqrt(width).
        dtype: of weights and optimizer state.
        admit_after: an id gets a row of its own once it was seen so often. Before, it is served its
            first values, and its gradients are dropped.
        evict_idle: an id that wasn't seen for more than so many steps loses its row; None: never.
        max_rows: about how many rows the whole table may have. A bucket has its even share, and
            beyond that loses what was seen least often, then longest ago. None: no bound.
        evict_every: steps between two evictions from a bucket.

    Raises:
        ValueError, TypeError: one of them can't be.
    """

    name: str
    width: int
    optimizer: RowOptimizer
    seed: int = 0
    bound: float | None = None
    dtype: torch.dtype = torch.float32
    admit_after: int = 1
    evict_idle: int | None = None
    max_rows: int | None = None
    evict_every: int = 100

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a table without a name: expected one that no other table has")
        if not isinstance(self.optimizer, RowOptimizer):
            raise TypeError(
                f"optimizer is a {type(self.optimizer).__name__}: expected one of "
                "elastic_trainer.embeddings.row_optimizer (SGD, Adagrad, RowwiseAdagrad, Adam), "
                "as rows are updated where they are held"
            )
        if self.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype is {self.dtype}: expected torch.float32 or torch.float64")
        for name in ("width", "admit_after", "evict_idle", "max_rows", "evict_every"):
            value = getattr(self, name)
            if value is None and name in ("evict_idle", "max_rows"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of table {self.name!r} is {value!r}: expected 1 or more")

    @property
    def scale(self) -> float:
        return self.bound if self.bound is not None else float(self.width**-0.5)

    def describe(self) -> dict[str, Any]:
        """Return what a stored table has to agree in."""
        optimizer = type(self.optimizer).__name__
        return {
            "name": self.name,
            "width": self.width,
            "optimizer": optimizer,
            "seed": self.seed,
            "bound": self.scale,
            "dtype": str(self.dtype),
        }


@dataclass
class Entries:
    """Rows of a table on their way: to another holder, or to storage."""

    ids: torch.Tensor
    weights: torch.Tensor
    state: torch.Tensor
    seen: torch.Tensor
    """How often each id was seen."""
    last: torch.Tensor
    """The step at which it was seen last."""
    candidates: torch.Tensor
    """Ids that aren't admitted yet."""
    candidates_seen: torch.Tensor
    candidates_last: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        return [getattr(self, one.name) for one in fields(self)]

    def of_buckets(self, wanted: Collection[int]) -> Entries:
        """Return those of these buckets."""
        rows = torch.from_numpy(_among(wanted, self.ids.numpy()))
        candidates = torch.from_numpy(_among(wanted, self.candidates.numpy()))
        parts = [part[rows] for part in self.tensors()[:5]]
        return Entries(*parts, *[part[candidates] for part in self.tensors()[5:]])


def _among(wanted: Collection[int], ids: Ids) -> NDArray[np.bool_]:
    """Tell which ids are in these buckets."""
    mask = np.zeros(BUCKETS, dtype=bool)
    mask[_numbers(wanted)] = True
    return mask[buckets(ids)]


def _numbers(wanted: Collection[int]) -> NDArray[np.int64]:
    return np.fromiter(wanted, dtype=np.int64, count=len(wanted))


@dataclass
class Counters:
    """Counts of events on a table's rows in this process."""

    admitted: int = 0
    evicted: int = 0
    updated: int = 0


class Table:
    """The rows of a table's buckets that are held here.

    Nothing is made by asking: an id without a row is served the values its row would begin with. So
    a step that is undone leaves no trace, and only `update` changes anything.
    """

    def __init__(self, settings: TableSettings) -> None:
        self.settings = settings
        self.step = 0
        """Updates so far, on every holder the same."""
        self.counters = Counters()
        self.watchers: list[Callable[[Ids], None]] = []
        """Each is called with the ids of which an update changed anything."""
        self.drops = np.zeros(BUCKETS, dtype=np.int64)
        """By bucket, how often what was held of it was dropped."""
        self._rests_since = np.full(BUCKETS, AWAKE)
        """By bucket, the step since which others update its rows, though they are here."""
        self._candidates = Candidates()
        dtype = np.float32 if settings.dtype == torch.float32 else np.float64
        self._rows = BucketRows(
            weights=(dtype, settings.width),
            state=(dtype, settings.optimizer.state_width(settings.width)),
            seen=(np.int64, None),
            last=(np.int64, None),
        )

    def __len__(self) -> int:
        """Return how many ids have a row here."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use, and of what finds them."""
        return self._rows.nbytes + self._candidates.nbytes

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return how many ids of each bucket have a row or a count here."""
        return self._rows.counts + self._candidates.counts

    @property
    def stores(self) -> tuple[BucketRows, BucketRows]:
        """Where what is held lies: rows, and counts of ids without one."""
        return self._rows, self._candidates.rows

    def pull(self, ids: Ids, words: Words | None = None) -> torch.Tensor:
        """Return a row for each id, also where it has none yet.

        Args:
            words: the ids' hashes, where these are known.
        """
        rows = self._rows.find(ids, words)
        found = self._column("weights").index_select(0, torch.from_numpy(rows))
        unknown = np.flatnonzero(rows == NO_ROW)
        if len(unknown):
            found[torch.from_numpy(unknown)] = self._first_values(ids[unknown])
        return found

    def update(
        self,
        ids: Ids,
        seen: NDArray[np.int64],
        gradients: torch.Tensor,
        lr: float,
        *,
        counts: bool = True,
    ) -> None:
        """Count a step, and apply it to the rows that it touched.

        Args:
            ids: no two alike.
            seen: how often each came in the step's samples.
            gradients: a row for each, summed over where it came.
            lr: learning rate.
            counts: False for a further part of the step that was counted last.
        """
        self.step += counts
        if len(ids):
            self._tell(ids)
            rows = self._rows.find(ids)
            if (rows == NO_ROW).any():
                rows = self._admit(ids, seen, rows)
            touched = rows != NO_ROW
            if not touched.all():
                rows, seen = rows[touched], seen[touched]
                gradients = gradients[torch.from_numpy(touched)]
            self._apply(rows, seen, gradients, lr)
        if counts:
            self._evict()

    def entries(self, wanted: Collection[int] | None = None) -> Entries:
        """Return a copy of what is held here, or of some buckets of it, by id: so it is the same
        whoever held it before."""
        of = None if wanted is None else _numbers(wanted)
        rows = self._rows.rows(of)
        rows = rows[np.argsort(self._rows.ids(rows))]
        return self._copied(rows, self._candidates.entries(of))

    def ids_in(self, wanted: Collection[int]) -> Ids:
        """Return the ids of these buckets that have a row or a count here, bucket by bucket."""
        of = _numbers(wanted)
        return np.concatenate([self._rows.ids(self._rows.rows(of)), self._candidates.ids(of)])

    def hot_ids_in(
        self, wanted: Collection[int], steps: int, most: int
    ) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of these buckets' rows that are seen most often, of those that were seen
        in the last `steps`, and how often: at most so many."""
        rows = self._rows.rows(_numbers(wanted))
        rows = rows[self._rows.columns["last"].numbers[rows] > self.step - steps]
        seen = self._rows.columns["seen"].numbers[rows]
        if len(rows) > most:
            hottest = np.argpartition(seen, len(rows) - most)[len(rows) - most :]
            rows, seen = rows[hottest], seen[hottest]
        return self._rows.ids(rows), seen

    def entries_of(self, ids: Ids) -> Entries:
        """Return a copy of what is held of these ids."""
        rows = self._rows.find(ids)
        return self._copied(rows[rows != NO_ROW], self._candidates.entries_of(ids))

    def replace(self, ids: Ids, entries: Entries) -> None:
        """Hold of these ids, no two alike, exactly these entries, of no others."""
        given = entries.ids.numpy()
        if len(given) < len(ids):
            others = np.setdiff1d(ids, given, assume_unique=True)
            self._rows.remove(others[self._rows.find(others) != NO_ROW])
        self._candidates.forget(ids)
        self._write(self._rows.put(given), entries)

    def _tell(self, ids: Ids) -> None:
        for watcher in self.watchers:
            watcher(ids)

    def _copied(self, rows: Ids, counts: tuple[Ids, Ids, Ids]) -> Entries:
        parts = [self._rows.ids(rows)]
        parts += [one.numbers[rows] for one in self._rows.columns.values()]
        return Entries(*map(torch.from_numpy, [*parts, *counts]))

    def put(self, entries: Entries) -> None:
        """Hold these, too. Raises ValueError where an id is held already."""
        ids = entries.ids.numpy()
        taken = self._rows.find(ids) != NO_ROW
        if taken.any():
            raise ValueError(
                f"id {int(ids[taken][0])} of table {self.settings.name!r} is held here already: "
                "expected each bucket to come from one holder"
            )
        self._write(self._rows.add(ids), entries)

    def read_bucket(self, bucket: int) -> tuple[list[int], list[bytes]]:
        """Return how many rows and counts of ids there are of a bucket, and a copy of the memory of
        each of their columns."""
        counts = [int(one.counts[bucket]) for one in self.stores]
        parts = [
            part.tobytes()
            for one, count in zip(self.stores, counts, strict=True)
            for part in one.lying(bucket, 0, count)
        ]
        return counts, parts

    def write_bucket(self, bucket: int, counts: Sequence[int], parts: Sequence[bytes]) -> None:
        """Hold of a bucket exactly what a table of these settings read of it. Raises ValueError
        where it didn't."""
        if [*map(len, parts)] != self._part_bytes(counts):
            raise ValueError(
                f"bucket {bucket} of table {self.settings.name!r} has {list(counts)} rows in "
                f"{[*map(len, parts)]} bytes: expected {self._part_bytes(counts)}"
            )
        which, left = np.array([bucket]), deque(parts)
        for rows, count in zip(self.stores, counts, strict=True):
            rows.drop(which)
            rows.reserve(which, np.array([count]))
            for mine in rows.lying(bucket, 0, count):
                mine[:] = np.frombuffer(left.popleft(), dtype=np.uint8)
            rows.hold(which, np.array([count]))

    def _part_bytes(self, counts: Sequence[int]) -> list[int]:
        each = [one.column_bytes for one in self.stores]
        return [count * one for count, some in zip(counts, each, strict=False) for one in some]

    def copy(self, other: Table, given: Collection[int]) -> None:
        """Hold what another table of these settings has of buckets of which nothing is here."""
        of = _numbers(given)
        for mine, theirs in zip(self.stores, other.stores, strict=True):
            mine.copy(theirs, of)

    def _write(self, rows: Rows, entries: Entries) -> None:
        for column, part in zip(self._rows.columns.values(), entries.tensors()[1:5], strict=True):
            column.numbers[rows] = part.numpy()
        if len(entries.candidates):
            self._candidates.put(*(part.numpy() for part in entries.tensors()[5:]))

    def drop(self, given: Collection[int]) -> None:
        """Hold these buckets no longer."""
        self._rows.drop(_numbers(given))
        self._candidates.drop(_numbers(given))
        self._rests_since[_numbers(given)] = AWAKE
        self.drops[_numbers(given)] += 1

    def clear(self) -> None:
        """Hold nothing, as at the beginning."""
        self.drop(range(BUCKETS))
        self.step = 0

    def rest(self, given: Collection[int]) -> None:
        """Evict nothing from these buckets until they wake: others update their rows meanwhile."""
        self._rests_since[_numbers(given)] = self.step

    def wake(self, given: Collection[int]) -> None:
        """Go on with these buckets as if no step had been counted while they rested."""
        of = _numbers(given)
        of = of[self._rests_since[of] != AWAKE]
        missed = np.zeros(BUCKETS, dtype=np.int64)
        missed[of] = self.step - self._rests_since[of]
        self._rests_since[of] = AWAKE
        rows = self._rows.rows(of)
        self._rows.columns["last"].numbers[rows] += missed[buckets(self._rows.ids(rows))]
        ids, seen, last = self._candidates.entries(of)
        if len(ids):
            self._candidates.put(ids, seen, last + missed[buckets(ids)])

    # ---- rows

    def _column(self, name: str) -> torch.Tensor:
        return self._rows.columns[name].tensor

    def _apply(
        self, rows: Rows, seen: NDArray[np.int64], gradients: torch.Tensor, lr: float
    ) -> None:
        at = torch.from_numpy(rows)
        weights = self._column("weights").index_select(0, at)
        state = self._column("state").index_select(0, at)
        self.settings.optimizer.update(weights, state, gradients, step=self.step, lr=lr)
        self._column("weights").index_copy_(0, at, weights)
        self._column("state").index_copy_(0, at, state)
        self._rows.columns["seen"].numbers[rows] += seen
        self._rows.columns["last"].numbers[rows] = self.step
        self.counters.updated += len(rows)

    def _admit(self, ids: Ids, seen: NDArray[np.int64], rows: Rows) -> Rows:
        """Return the rows, with new ones for ids that were seen often enough by now."""
        new = np.flatnonzero(rows == NO_ROW)
        before = np.zeros(len(new), dtype=np.int64)
        if self.settings.admit_after > 1:
            admitted, before = self._candidates.count(
                ids[new], seen[new], self.step, self.settings.admit_after
            )
            new = new[admitted]
        if not len(new):
            return rows
        fresh = self._rows.add(ids[new])
        columns = self._rows.columns
        columns["weights"].numbers[fresh] = self._first_values(ids[new]).numpy()
        columns["state"].numbers[fresh] = self.settings.optimizer.initial
        columns["seen"].numbers[fresh] = before
        self.counters.admitted += len(new)
        return self._rows.find(ids)

    def _evict(self) -> None:
        settings = self.settings
        if settings.evict_idle is None and settings.max_rows is None:
            return
        # Some buckets at each step, so that none takes long; which ones depends on no holder.
        due = np.arange(-self.step % settings.evict_every, BUCKETS, settings.evict_every)
        awake = due[self._rests_since[due] == AWAKE]
        rows = self._rows.rows(awake)
        goes = np.zeros(len(rows), dtype=bool)
        if settings.evict_idle is not None:
            idle = self.step - self._rows.columns["last"].numbers[rows]
            goes |= idle > settings.evict_idle
            ids, _, last = self._candidates.entries(awake)
            ids = ids[self.step - last > settings.evict_idle]
            self._tell(ids)
            self._candidates.forget(ids)
        if settings.max_rows is not None:
            goes |= self._beyond_share(rows, -(-settings.max_rows // BUCKETS), goes)
        gone = self._rows.ids(rows[goes])
        self.counters.evicted += len(gone)
        self._tell(gone)
        self._rows.remove(gone)

    def _beyond_share(self, rows: Ids, share: int, gone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell which rows are beyond their bucket's share: by bucket, so that it doesn't depend on
        who holds which."""
        ids = self._rows.ids(rows)
        seen, last = (self._rows.columns[one].numbers[rows] for one in ("seen", "last"))
        bucket = buckets(ids)
        # In each bucket first what stays: seen most often, then last, then the smaller id.
        order = np.lexsort((ids, -last, -seen, gone, bucket))
        ordered = bucket[order]
        firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(rows) else rows
        sizes = np.diff(np.r_[firsts, len(rows)])
        place = np.arange(len(rows)) - np.repeat(firsts, sizes)
        beyond = np.zeros(len(rows), dtype=bool)
        beyond[order[place >= share]] = True
        return beyond

    def _first_values(self, ids: Ids) -> torch.Tensor:
        settings = self.settings
        values = first_values(
            ids, settings.width, seed=settings.seed, table=settings.name, bound=settings.scale
        )
        return torch.from_numpy(values).to(settings.dtype)
