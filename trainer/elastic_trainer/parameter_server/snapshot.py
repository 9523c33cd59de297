"""Snapshot: a holder's rows as they were at one moment, read a part at a time while they change.

Whoever changes rows says so first (Table.watchers). What the snapshot hasn't read of them yet it
reads then, and puts it in place of what it finds later.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from elastic_trainer.embeddings.bucket_rows import NO_ROW, BucketRows
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.table import Entries, Table
from elastic_trainer.parameter_server.holder import Buckets
from elastic_trainer.parameter_server.saves import Since
from elastic_trainer.parameter_server.wire import write_settings

PART_ROWS = 1 << 13
"""Rows that are read at a time; more, where a bucket has more."""


class Snapshot:
    """Args:
    held: buckets to be read.
    since: of an earlier save; of buckets that it covers only changes are read.
    """

    def __init__(
        self, tables: Mapping[str, Table], held: Buckets, since: Since | None = None
    ) -> None:
        covered = np.zeros(BUCKETS, dtype=bool) if since is None else since.covered
        self._held, self._whole = held, held[~covered[held]]
        mine = np.zeros(BUCKETS, dtype=bool)
        mine[held] = covered[held]
        self.tables = []
        for name, one in tables.items():
            ids = None if since is None else since.changed.get(name)
            changed = None if ids is None else ids[mine[buckets(ids)]]
            self.tables.append(TableSnapshot(one, self._whole, changed))

    def contents(self) -> dict[str, Any]:
        """Return what was read, as a file has it. May be called on another thread, once."""
        tables, changes = {}, {}
        for one in self.tables:
            text = write_settings(one.table.settings)
            tables[text] = one.step, one.rows_of(whole=True)
            if one.changed is not None:
                changes[text] = torch.from_numpy(one.changed), one.rows_of(whole=False)
        return {
            "buckets": torch.from_numpy(self._held),
            "whole": torch.from_numpy(self._whole),
            "tables": tables,
            "changes": changes,
        }


class TornError(Exception):
    """Rows that were to be read have gone to another server."""


class TableSnapshot:
    """Args:
    whole: buckets of which all is read.
    changed: ids that are read, too, none of those buckets.
    weights_alone: whether the rest of the rows may be forgotten.
    """

    def __init__(
        self, table: Table, whole: Buckets, changed: Ids | None, *, weights_alone: bool = False
    ) -> None:
        self.table, self.step, self.changed = table, table.step, changed
        self._weights_alone = weights_alone
        part = np.cumsum(table.counts[whole]) // PART_ROWS
        pieces: list[np.ndarray] = np.split(whole, np.flatnonzero(np.diff(part)) + 1)
        self._first_of_ids = len(pieces)
        ids = np.empty(0, dtype=np.int64) if changed is None else changed
        pieces += [ids[begin : begin + PART_ROWS] for begin in range(0, len(ids), PART_ROWS)]
        self._pieces, self._next = pieces, 0
        self._piece_of = np.full(BUCKETS, -1)
        for number, some in enumerate(pieces[: self._first_of_ids]):
            self._piece_of[some] = number
        self._ids = ids
        self._drops = table.drops.copy()
        self._kept = BucketRows()
        """Ids of which the old rows were read before their turn."""
        self._early: dict[int, list[tuple[Ids, Entries]]] = {}
        """These, by the piece that they are of."""
        self._read: dict[bool, list[Entries]] = {True: [], False: []}
        self._nothing = table.entries_of(ids[:0])
        table.watchers.append(self._keep)

    @property
    def left(self) -> int:
        return len(self._pieces) - self._next

    def read_on(self) -> None:
        piece, whole = self._pieces[self._next], self._next < self._first_of_ids
        of = piece if whole else buckets(piece)
        if (self.table.drops[of] != self._drops[of]).any():
            raise TornError
        found = self.table.entries(piece.tolist()) if whole else self.table.entries_of(piece)
        for ids, before in self._early.pop(self._next, ()):
            found = _joined(_without(found, ids), before)
        if self._weights_alone:
            found = replace(found, state=found.state[:0].clone())
        self._read[whole].append(found)
        self._next += 1
        if not self.left:
            self.stop()

    def stop(self) -> None:
        if self._keep in self.table.watchers:
            self.table.watchers.remove(self._keep)

    def rows_of(self, *, whole: bool) -> list[list[torch.Tensor]]:
        """Return what was read of whole buckets, or of changed ids: each column in parts, as
        whoever writes one into a file keeps all other threads from running meanwhile."""
        some = self._read[whole] or [self._nothing]
        return [list(parts) for parts in zip(*(one.tensors() for one in some), strict=True)]

    def _keep(self, ids: Ids) -> None:
        """Read what is about to change and wasn't read yet."""
        piece = self._piece_of[buckets(ids)]
        if len(self._ids):
            place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            among = (piece < 0) & (self._ids[place] == ids)
            piece = np.where(among, self._first_of_ids + place // PART_ROWS, piece)
        unread = piece >= self._next
        unread[unread] = self._kept.find(ids[unread]) == NO_ROW
        ids, piece = ids[unread], piece[unread]
        if not len(ids):
            return
        self._kept.add(ids)
        for number in np.unique(piece).tolist():
            some = ids[piece == number]
            self._early.setdefault(number, []).append((some, self.table.entries_of(some)))


def read_in_parts(tables: Collection[TableSnapshot]) -> Generator[None]:
    """Read all, a part before each yield, then heed changes no longer. Raises TornError where rows
    are gone that were to be read."""
    try:
        for one in tables:
            while one.left:
                one.read_on()
                yield
    finally:
        for one in tables:
            one.stop()


def _without(entries: Entries, ids: Ids) -> Entries:
    """Return what they have of other ids."""
    rows = torch.from_numpy(~np.isin(entries.ids.numpy(), ids))
    counts = torch.from_numpy(~np.isin(entries.candidates.numpy(), ids))
    parts = entries.tensors()
    return Entries(*(part[rows] for part in parts[:5]), *(part[counts] for part in parts[5:]))


def _joined(one: Entries, other: Entries) -> Entries:
    return Entries(*map(torch.cat, zip(one.tensors(), other.tensors(), strict=True)))
