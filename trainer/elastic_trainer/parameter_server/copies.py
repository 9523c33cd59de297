"""Copies: what a server keeps of others' rows, each as they were at one moment. No I/O.

A copy that is begun fills up until its first moment is whole; the one before it counts so long.
What changes after that waits until all of the next moment is here: never does a copy mix two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.wire import unpack_entries


@dataclass(frozen=True)
class Rows:
    """Entries of exactly these ids of a table."""

    text: str
    """The table's settings."""
    ids: Ids
    entries: Sequence[bytes]


@dataclass(frozen=True)
class Moment:
    """What rows belong to, as they were at one moment."""

    buckets: Buckets
    applied: Mapping[str, NDArray[np.int64]]
    """By worker, the newest sequence that each of the buckets took."""
    steps: Mapping[str, int]


@dataclass
class _Copy:
    name: str
    epoch: str
    holder: Holder = field(default_factory=Holder)
    waiting: list[Rows] = field(default_factory=list)

    def put(self, rows: Rows) -> None:
        table = self.holder.add_table(rows.text)
        table.replace(rows.ids, unpack_entries(rows.entries, table.settings))

    def end_moment(self, moment: Moment) -> None:
        for rows in self.waiting:
            self.put(rows)
        self.waiting = []
        self.holder.hold_only(moment.buckets, moment.applied, moment.steps)

    def drop(self, given: Buckets) -> None:
        if self.holder.held[given].any():
            self.holder.held[given] = False
            for table in self.holder.tables.values():
                table.drop(given.tolist())


class Copies:
    """By the life of the server whose rows they are."""

    def __init__(self) -> None:
        self._whole: dict[str, _Copy] = {}
        self._coming: dict[str, _Copy] = {}

    def begin(self, source: str, name: str, epoch: str) -> None:
        self._coming[source] = _Copy(name, epoch)

    def keep(
        self, source: str, name: str, rows: Sequence[Rows], last: Moment | None, given: Buckets
    ) -> bool:
        """Keep a part of a copy. False where that isn't known here.

        Args:
            last: what ends the moment, if this is the last of its parts.
            given: buckets that are about to be another server's.
        """
        coming, whole = self._coming.get(source), self._whole.get(source)
        for one in (coming, whole):
            if one is not None and len(given):
                one.drop(given)
        if coming is not None and coming.name == name:
            for part in rows:
                coming.put(part)
            if last is not None:
                coming.end_moment(last)
                self._whole[source] = self._coming.pop(source)
            return True
        if whole is None or whole.name != name:
            return False
        whole.waiting += rows
        if last is not None:
            whole.end_moment(last)
        return True

    def buckets(self) -> dict[str, Buckets]:
        """Return the buckets of each copy that is whole."""
        return {one: np.flatnonzero(copy.holder.held) for one, copy in self._whole.items()}

    def adopt(self, source: str, given: Buckets, holder: Holder) -> bool:
        """Have a holder hold these buckets as they were copied. False where it can't."""
        copy = self._whole.get(source)
        if copy is None or not copy.holder.held[given].all() or holder.held[given].any():
            return False
        holder.adopt(copy.holder, given)
        copy.drop(given)
        return True

    def forget(self, sources: Sequence[str], epochs: Sequence[str]) -> None:
        """Keep nothing of these lives, nor of these epochs."""
        for copies in (self._whole, self._coming):
            for source in [
                one for one, copy in copies.items() if one in sources or copy.epoch in epochs
            ]:
                del copies[source]
