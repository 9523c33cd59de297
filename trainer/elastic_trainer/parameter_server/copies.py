"""Copies: what a server keeps of others' rows, each as they were at one moment.

A copy that is begun fills up until its first moment is whole; the one before it counts so long.
What changes after that waits until all of the next moment is here: never does a copy mix two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS, Ids
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


class Copy(ABC):
    """A copy of one server's rows; `held` tells which of its buckets it has since its last moment.

    Args:
        name: of the copy, from its beginning.
        epoch: of the rows.
    """

    def __init__(self, name: str, epoch: str) -> None:
        self.name, self.epoch = name, epoch
        self.held: NDArray[np.bool_] = np.zeros(BUCKETS, dtype=bool)

    @abstractmethod
    def put(self, rows: Rows) -> None:
        """Take in a part of what the next moment is to have."""

    @abstractmethod
    def end_moment(self, moment: Moment) -> None:
        """Be as all parts so far say."""

    @abstractmethod
    def drop(self, given: Buckets) -> None:
        """Have these buckets no longer."""

    @property
    def is_too_long(self) -> bool:
        """Whether it is to be begun anew."""
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
        self._waiting: list[Rows] = []
        self._whole = False

    def put(self, rows: Rows) -> None:
        if self._whole:
            self._waiting.append(rows)
        else:
            self._put(rows)

    def _put(self, rows: Rows) -> None:
        table = self._holder.add_table(rows.text)
        table.replace(rows.ids, unpack_entries(rows.entries, table.settings))

    def end_moment(self, moment: Moment) -> None:
        for rows in self._waiting:
            self._put(rows)
        self._waiting, self._whole = [], True
        self._holder.hold_only(moment.buckets, moment.applied, moment.steps)
        self.held = self._holder.held

    def drop(self, given: Buckets) -> None:
        if self._holder.held[given].any():
            self._holder.held[given] = False
            for table in self._holder.tables.values():
                table.drop(given.tolist())

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

    def begin(self, source: str, name: str, epoch: str) -> None:
        self._give_up(self._coming, source)
        self._coming[source] = self._make(name, epoch)

    def keep(
        self, source: str, name: str, rows: Sequence[Rows], last: Moment | None, given: Buckets
    ) -> bool:
        """Keep a part of a copy. False where that isn't known here.

        Args:
            last: what ends the moment, if this is the last of its parts.
            given: buckets that are about to be another server's.
        """
        coming, whole = self._coming.get(source), self._whole.get(source)
        try:
            return self._keep(coming, whole, source, name, rows, last, given)
        except OSError:
            # It may have a part of a moment.
            broken = self._coming if coming is not None and coming.name == name else self._whole
            self._give_up(broken, source)
            raise

    def _keep(
        self,
        coming: Copy | None,
        whole: Copy | None,
        source: str,
        name: str,
        rows: Sequence[Rows],
        last: Moment | None,
        given: Buckets,
    ) -> bool:
        for one in (coming, whole):
            if one is not None and len(given):
                one.drop(given)
        if coming is not None and coming.name == name:
            for part in rows:
                coming.put(part)
            if last is not None:
                coming.end_moment(last)
                self._give_up(self._whole, source)
                self._whole[source] = self._coming.pop(source)
            return True
        if whole is None or whole.name != name or whole.is_too_long:
            return False
        for part in rows:
            whole.put(part)
        if last is not None:
            whole.end_moment(last)
        return True

    @property
    def sources(self) -> set[str]:
        """Whose rows are copied, or begun to be."""
        return self._whole.keys() | self._coming.keys()

    def buckets(self) -> dict[str, Buckets]:
        """Return the buckets of each copy that is whole."""
        return {one: np.flatnonzero(copy.held) for one, copy in self._whole.items()}

    def adopt(self, source: str, given: Buckets, holder: Holder) -> bool:
        """Have a holder hold these buckets as they were copied. False where it can't."""
        copy = self._whole.get(source)
        if copy is None or not copy.held[given].all() or holder.held[given].any():
            return False
        holder.adopt(copy.holder(), given)
        copy.drop(given)
        return True

    def forget(self, sources: Sequence[str], epochs: Sequence[str]) -> None:
        """Keep nothing of these lives, nor of these epochs."""
        for copies in (self._whole, self._coming):
            for source in [
                one for one, copy in copies.items() if one in sources or copy.epoch in epochs
            ]:
                self._give_up(copies, source)

    def _give_up(self, copies: dict[str, Copy], source: str) -> None:
        if source in copies:
            copies.pop(source).close()
