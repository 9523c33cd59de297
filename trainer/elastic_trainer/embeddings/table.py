"""Table: the rows of the buckets that this process holds, and all that belongs to a row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings.candidates import Candidates
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets, first_values
from elastic_trainer.embeddings.row_index import RowIndex
from elastic_trainer.embeddings.row_optimizer import RowOptimizer

_SMALLEST = 1 << 10
"""Rows of the first slab."""
_NO_BUCKET = -1


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
        evict_every: steps between two evictions.

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
    return _mask(wanted)[buckets(ids)]


def _mask(wanted: Collection[int]) -> NDArray[np.bool_]:
    """Tell of each bucket whether it is one of these; the last one is _NO_BUCKET."""
    mask = np.zeros(BUCKETS + 1, dtype=bool)
    mask[list(wanted)] = True
    return mask


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
        self._index = RowIndex()
        self._candidates = Candidates()
        self._used = 0
        self._free: Ids = np.empty(0, dtype=np.int64)
        """Rows below `_used` that were given back."""
        self._state_width = settings.optimizer.state_width(settings.width)
        self._allocate(_SMALLEST)

    def __len__(self) -> int:
        """Return how many ids have a row here."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use, and of the indexes."""
        each = (self.settings.width + self._state_width) * self._weights.element_size() + 3 * 8 + 2
        return self._used * each + self._index.nbytes + self._candidates.nbytes

    def pull(self, ids: Ids) -> torch.Tensor:
        """Return a row for each id, also where it has none yet."""
        rows = self._index.find(ids)
        unknown = np.flatnonzero(rows < 0)
        if not len(unknown):
            return self._weights.index_select(0, torch.from_numpy(rows))
        rows[unknown] = 0
        found = self._weights.index_select(0, torch.from_numpy(rows))
        found[torch.from_numpy(unknown)] = self._first_values(ids[unknown])
        return found

    def update(self, ids: Ids, seen: NDArray[np.int64], gradients: torch.Tensor, lr: float) -> None:
        """Count a step, and apply it to the rows that it touched.

        Args:
            ids: no two alike.
            seen: how often each came in the step's samples.
            gradients: a row for each, summed over where it came.
            lr: learning rate.
        """
        self.step += 1
        if len(ids):
            self._tell(ids)
            rows = self._index.find(ids)
            if (rows < 0).any():
                rows = self._admit(ids, seen, rows)
            touched = rows >= 0
            if not touched.all():
                rows, seen = rows[touched], seen[touched]
                gradients = gradients[torch.from_numpy(touched)]
            self._apply(rows, seen, gradients, lr)
        if self.step % self.settings.evict_every == 0:
            self._evict()

    def entries(self, wanted: Collection[int] | None = None) -> Entries:
        """Return a copy of what is held here, or of some buckets of it, by id: so it is the same
        whoever held it before."""
        rows = self._rows(wanted)
        rows = rows[np.argsort(self._ids[rows])]
        counts = self._candidates.entries()
        if wanted is not None:
            asked = _among(wanted, counts[0])
            counts = counts[0][asked], counts[1][asked], counts[2][asked]
        return self._copied(rows, counts)

    def ids_in(self, wanted: Collection[int]) -> Ids:
        """Return the ids of these buckets that have a row or a count here."""
        candidates = self._candidates.entries()[0]
        return np.concatenate(
            [self._ids[self._rows(wanted)], candidates[_among(wanted, candidates)]]
        )

    def entries_of(self, ids: Ids) -> Entries:
        """Return a copy of what is held of these ids."""
        rows = self._index.find(ids)
        return self._copied(rows[rows >= 0], self._candidates.entries_of(ids))

    def replace(self, ids: Ids, entries: Entries) -> None:
        """Hold of these ids, no two alike, exactly these entries."""
        rows = self._index.find(ids)
        stays = np.isin(ids, entries.ids.numpy())
        self._give_back(rows[(rows >= 0) & ~stays])
        given = entries.ids.numpy()
        rows = self._index.find(given)
        rows[rows < 0] = self._take_rows(given[rows < 0])
        self._write(rows, entries)
        self._candidates.forget(ids)
        self._put_candidates(entries)

    def _tell(self, ids: Ids) -> None:
        for watcher in self.watchers:
            watcher(ids)

    def _copied(self, rows: Ids, counts: tuple[Ids, Ids, Ids]) -> Entries:
        at = torch.from_numpy(rows)
        candidates = [torch.from_numpy(part) for part in counts]
        return Entries(
            torch.from_numpy(self._ids[rows]),
            self._weights.index_select(0, at),
            self._state.index_select(0, at),
            torch.from_numpy(self._seen[rows]),
            torch.from_numpy(self._last[rows]),
            *candidates,
        )

    def put(self, entries: Entries) -> None:
        """Hold these, too. Raises ValueError where an id is held already."""
        ids = entries.ids.numpy()
        taken = self._index.find(ids) >= 0
        if taken.any():
            raise ValueError(
                f"id {int(ids[taken][0])} of table {self.settings.name!r} is held here already: "
                "expected each bucket to come from one holder"
            )
        self._write(self._take_rows(ids), entries)
        self._put_candidates(entries)

    def _write(self, rows: Ids, entries: Entries) -> None:
        at = torch.from_numpy(rows)
        self._weights.index_copy_(0, at, entries.weights)
        self._state.index_copy_(0, at, entries.state)
        self._seen[rows] = entries.seen.numpy()
        self._last[rows] = entries.last.numpy()

    def _put_candidates(self, entries: Entries) -> None:
        if len(entries.candidates):
            self._candidates.put(
                entries.candidates.numpy(),
                entries.candidates_seen.numpy(),
                entries.candidates_last.numpy(),
            )

    def drop(self, given: Collection[int]) -> None:
        """Hold these buckets no longer."""
        for _ in self.drop_in_parts(given, max(1, self._used)):
            pass

    def drop_in_parts(self, given: Collection[int], most: int) -> Iterator[None]:
        """Hold these buckets no longer, so many rows at a time. Between two parts the table may be
        used, but for these buckets."""
        mask = _mask(given)
        rows = self._rows(given)
        for begin in range(0, len(rows), most):
            part = rows[begin : begin + most]
            # What was evicted meanwhile may be another id's row by now.
            self._give_back(part[mask[self._bucket[part]]])
            yield
        ids, seen, last = self._candidates.entries()
        if len(ids):
            stays = ~_among(given, ids)
            self._candidates.replace(ids[stays], seen[stays], last[stays])

    def clear(self) -> None:
        """Hold nothing, as at the beginning."""
        self.drop(range(BUCKETS))
        self.step = 0

    # ---- rows

    def _apply(
        self, rows: Ids, seen: NDArray[np.int64], gradients: torch.Tensor, lr: float
    ) -> None:
        at = torch.from_numpy(rows)
        weights = self._weights.index_select(0, at)
        state = self._state.index_select(0, at)
        self.settings.optimizer.update(weights, state, gradients, step=self.step, lr=lr)
        self._weights.index_copy_(0, at, weights)
        self._state.index_copy_(0, at, state)
        self._seen[rows] += seen
        self._last[rows] = self.step
        self.counters.updated += len(rows)

    def _admit(self, ids: Ids, seen: NDArray[np.int64], rows: Ids) -> Ids:
        """Return the rows, with new ones for ids that were seen often enough by now."""
        new = np.flatnonzero(rows < 0)
        before = np.zeros(len(new), dtype=np.int64)
        if self.settings.admit_after > 1:
            admitted, before = self._candidates.count(
                ids[new], seen[new], self.step, self.settings.admit_after
            )
            new = new[admitted]
        if not len(new):
            return rows
        fresh = self._take_rows(ids[new])
        at = torch.from_numpy(fresh)
        self._weights.index_copy_(0, at, self._first_values(ids[new]))
        self._state.index_fill_(0, at, self.settings.optimizer.initial)
        self._seen[fresh] = before
        self.counters.admitted += len(new)
        rows[new] = fresh
        return rows

    def _evict(self) -> None:
        settings = self.settings
        rows = self._rows()
        goes = np.zeros(len(rows), dtype=bool)
        if settings.evict_idle is not None:
            goes |= self.step - self._last[rows] > settings.evict_idle
            ids, seen, last = self._candidates.entries()
            stays = self.step - last <= settings.evict_idle
            self._tell(ids[~stays])
            self._candidates.replace(ids[stays], seen[stays], last[stays])
        if settings.max_rows is not None:
            goes |= self._beyond_share(rows, -(-settings.max_rows // BUCKETS), goes)
        self.counters.evicted += int(goes.sum())
        if goes.any():
            self._tell(self._ids[rows[goes]])
            self._give_back(rows[goes])

    def _beyond_share(self, rows: Ids, share: int, gone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell which rows are beyond their bucket's share: by bucket, so that it doesn't depend on
        who holds which."""
        ids, bucket = self._ids[rows], self._bucket[rows]
        # In each bucket first what stays: seen most often, then last, then the smaller id.
        order = np.lexsort((ids, -self._last[rows], -self._seen[rows], gone, bucket))
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

    def _rows(self, wanted: Collection[int] | None = None) -> Ids:
        """Return the rows in use, or those of these buckets."""
        bucket = self._bucket[: self._used]
        if wanted is None:
            return np.flatnonzero(bucket != _NO_BUCKET)
        return np.flatnonzero(_mask(wanted)[bucket])

    def _take_rows(self, ids: Ids) -> Ids:
        """Return a row for each of these ids, which have none."""
        again = min(len(ids), len(self._free))
        reused, self._free = self._free[:again], self._free[again:]
        lacking = len(ids) - again
        fresh = np.arange(self._used, self._used + lacking, dtype=np.int64)
        self._used += lacking
        if self._used > len(self._ids):
            self._allocate(max(self._used, 2 * len(self._ids)))
        rows = np.concatenate([reused, fresh])
        self._ids[rows], self._bucket[rows] = ids, buckets(ids)
        self._index.insert(ids, rows)
        return rows

    def _give_back(self, gone: Ids) -> None:
        """Have these rows, which are in use, used again."""
        whole = len(gone) == len(self._index)
        self._index.remove(self._ids[gone])
        if whole:
            self._used, self._free = 0, np.empty(0, dtype=np.int64)
            self._allocate(_SMALLEST)
        else:
            self._bucket[gone] = _NO_BUCKET
            self._free = np.concatenate([self._free, gone])

    def _allocate(self, size: int) -> None:
        """Make room for `size` rows; the system gives memory only to those that are written."""
        old = self._used and {
            name: getattr(self, name)
            for name in ("_weights", "_state", "_ids", "_bucket", "_seen", "_last")
        }
        dtype, width = self.settings.dtype, self.settings.width
        self._weights = torch.empty(size, width, dtype=dtype)
        self._state = torch.empty(size, self._state_width, dtype=dtype)
        self._ids = np.empty(size, dtype=np.int64)
        self._bucket = np.empty(size, dtype=np.int16)
        """Of each row; _NO_BUCKET where it was given back."""
        self._seen = np.empty(size, dtype=np.int64)
        self._last = np.empty(size, dtype=np.int64)
        for name, content in (old or {}).items():
            getattr(self, name)[: len(content)] = content
