"""Copies: what a server keeps of others' rows, each as they were at one moment.

A copy that is begun fills up until its first moment is whole; the one before it counts so long.
What changes after that waits until all of the next moment is here: never does a copy mix two. Of
buckets that the server has given away since, a copy has the rows until they are outdated: whoever
took them may be lost before there is a copy of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.parts import hold_as_told
from elastic_trainer.parameter_server.placement import Kept
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.wire import unpack, unpack_entries


class Copy(ABC):
    """A copy of one server's rows; `held` tells which of its buckets it has since its last moment.

    Args:
        name: of the copy, from its beginning.
        epoch: of the rows.
    """

    def __init__(self, name: str, epoch: str) -> None:
        self.name, self.epoch = name, epoch
        self.held: NDArray[np.bool_] = np.zeros(BUCKETS, dtype=bool)
        self.turns: NDArray[np.int64] = np.zeros(BUCKETS, dtype=np.int64)

    @abstractmethod
    def keep(self, part: Any) -> None:
        """Take in a KeepRequest's rows for the next moment. With the last of its parts, be as all
        of them say, and as before in buckets that the moment hasn't."""

    @abstractmethod
    def drop(self, given: Buckets) -> None:
        """Have these buckets no longer."""

    @property
    def is_too_long(self) -> bool:
        """Return whether it is to be begun anew."""
        return False

    @abstractmethod
    def holder(self) -> Holder:
        """Return the rows as they were at the last moment."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it takes."""


class MemoryCopy(Copy):
    def __init__(self, name: str, epoch: str) -> None:
        super().__init__(name, epoch)
        self._holder = Holder()
        self.held, self.turns = self._holder.held, self._holder.turns
        self._waiting: list[Any] = []
        """Rows of buckets that are in the copy, until the next moment ends."""
        self._whole = False

    def keep(self, part: Any) -> None:
        for rows in part.rows:
            if not self._whole:
                self._put(rows, None)
                continue
            known = self.held[buckets(unpack(rows.ids))]
            if not known.all():
                self._put(rows, ~self.held)  # of millions, where they came by a move
            if known.any():
                self._waiting.append(rows)
        if part.last:
            self._end_moment(part)

    def _put(self, rows: Any, of: NDArray[np.bool_] | None) -> None:
        """Have these rows, or those of some buckets alone."""
        table, ids = self._holder.add_table(rows.table), unpack(rows.ids)
        wanted = np.ones(len(ids), dtype=bool) if of is None else of[buckets(ids)]
        if len(ids) and not wanted.any():
            return
        entries = unpack_entries(rows.entries, table.settings)
        if of is not None and not wanted.all():
            ids, entries = ids[wanted], entries.of_buckets(np.flatnonzero(of).tolist())
        table.replace(ids, entries)

    def _end_moment(self, moment: Any) -> None:
        given, turns = unpack(moment.buckets), unpack(moment.turns)
        of = np.zeros(BUCKETS, dtype=bool)
        of[given] = True
        if self._whole:
            # All rows of those that were away meanwhile are among what waits.
            self._holder.drop_rows(given[self.held[given] & (self.turns[given] != turns)])
        self._holder.drop_rows(np.flatnonzero(~of & ~self.held))  # they went before its end
        for rows in self._waiting:
            self._put(rows, of & self.held)
        self._waiting, self._whole = [], True
        hold_as_told(self._holder, moment, turns)

    def drop(self, given: Buckets) -> None:
        of = np.zeros(BUCKETS, dtype=bool)
        of[given] = self.held[given]
        self.held[of] = False
        self._holder.drop_rows(np.flatnonzero(of))
        for rows in self._waiting:  # of buckets that came back it is all that the next moment has
            self._put(rows, of)

    def holder(self) -> Holder:
        return self._holder

    def close(self) -> None:
        self._holder = Holder()


class Copies:
    """By the life of the server whose rows they are.

    Args:
        make: makes a copy of a name and an epoch.

    Raises:
        OSError: by all methods, where `make` makes copies on disk; what is begun is given up then.
    """

    def __init__(self, make: Callable[[str, str], Copy] = MemoryCopy) -> None:
        self._make = make
        self._whole: dict[str, Copy] = {}
        self._coming: dict[str, Copy] = {}
        self._older: list[tuple[str, Copy]] = []
        """Copies that newer ones followed, of buckets that these haven't."""

    def keep(self, part: Any) -> bool:
        """Keep a KeepRequest's part of a copy. False where that isn't known here."""
        source = part.source
        if part.first:
            self._give_up(self._coming, source)
            self._coming[source] = self._make(part.copy, part.epoch)
        coming = self._coming.get(source)
        copies = self._coming if coming is not None and coming.name == part.copy else self._whole
        copy = copies.get(source)
        if copy is None or copy.name != part.copy or copy.is_too_long:
            return False
        try:
            copy.keep(part)
        except OSError:
            self._give_up(copies, source)  # it may have a part of a moment
            raise
        if part.last and copies is self._coming:
            if source in self._whole:
                self._older.append((source, self._whole[source]))
            self._whole[source] = self._coming.pop(source)
            for of, older in self._older:
                if of == source:  # goes on having what the new one hasn't
                    older.drop(np.flatnonzero(older.held & copy.held))
            self._close_empty()
        return True

    def kept(self) -> list[Kept]:
        """Return what there is of each copy that is whole."""
        found = []
        for source, copy in self._all():
            of = np.flatnonzero(copy.held)
            found.append(Kept(source, of, copy.turns[of]))
        return found

    def adopt(
        self, source: str, given: Buckets, share: Share, epoch: str, turn: int, number: int
    ) -> bool:
        """Have a share hold these buckets as they were copied. False where it can't."""
        for of, copy in self._all():
            if of == source and copy.epoch == epoch and copy.held[given].all():
                if share.holder.held[given].any():
                    return False
                share.adopt(copy.holder(), given, turn, number)
                copy.drop(given)
                self._close_empty()
                return True
        return False

    def drop(self, source: str, given: Buckets, turns: NDArray[np.int64]) -> None:
        """Keep these buckets no longer, where they came to that server by these turns."""
        for of, copy in self._all():
            if of == source:
                copy.drop(given[copy.turns[given] == turns])
        self._close_empty()

    def forget(self, sources: Collection[str], epochs: Collection[str]) -> None:
        """Keep nothing of these lives, nor of these epochs."""
        for copies in (self._whole, self._coming):
            for source in [
                one for one, copy in copies.items() if one in sources or copy.epoch in epochs
            ]:
                self._give_up(copies, source)
        for source, copy in self._older:
            if source in sources or copy.epoch in epochs:
                copy.held[:] = False
        self._close_empty()

    def _all(self) -> list[tuple[str, Copy]]:
        return [*self._whole.items(), *self._older]

    def _close_empty(self) -> None:
        """Close copies that have nothing; their servers begin others."""
        for source in [one for one, copy in self._whole.items() if not copy.held.any()]:
            self._give_up(self._whole, source)
        for _, copy in self._older:
            if not copy.held.any():
                copy.close()
        self._older = [(source, copy) for source, copy in self._older if copy.held.any()]

    def _give_up(self, copies: dict[str, Copy], source: str) -> None:
        if source in copies:
            copies.pop(source).close()
