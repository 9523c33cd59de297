"""Holder: the buckets of one server, and the answer to each pull and push. No I/O, one thread.

A worker's push is known by (worker, sequence), and each bucket keeps the newest sequence that it
took of each worker. These go along where the bucket goes, so a push that is sent again changes
nothing twice, whichever servers its parts have been sent to, and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets, buckets_of, hash_ids
from elastic_trainer.embeddings.table import Table
from elastic_trainer.parameter_server.clocks import Clocks
from elastic_trainer.parameter_server.wire import read_settings, write_settings

Buckets = NDArray[np.int64]
EVERY_BUCKET: Buckets = np.arange(BUCKETS)
NO_TURN = -1
BEHIND = (
    "rows of a server that was lost go on from a copy, so that they are some steps behind: they "
    "have to go back to a commit with all others"
)
"""Says why a worker that goes on from rows of one moment is given none."""
READS_ONLY = -1
"""The clock of a pull that no push follows: nobody waits for who only evaluates."""


class Verdict(Enum):
    """The answer to a request; nothing was done unless it is DONE."""

    DONE = 0
    NOT_OWNER = 1
    LATER = 2
    NOT_OPEN = 3


@dataclass
class Gradients:
    """A push's part for one table."""

    table: str
    ids: Ids
    seen: NDArray[np.int64]
    sums: torch.Tensor
    lr: float


def check_ids(table: str, ids: Ids) -> None:
    """Raises ValueError where a worker would never have sent these."""
    if not (ids[1:] > ids[:-1]).all():
        raise ValueError(f"ids for table {table!r}: expected each once, ascending")


class Holder:
    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.watchers: list[Callable[[Table], None]] = []
        """Each is called with a table that is new."""
        self.clocks = Clocks()
        self.held = np.zeros(BUCKETS, dtype=bool)
        self.frozen = np.zeros(BUCKETS, dtype=bool)
        """Held, and on their way to another server."""
        self.turns = np.zeros(BUCKETS, dtype=np.int64)
        """By bucket, the turn by which it came here; of one with two holders' rows, the later one's
        are newer."""
        self.adopted = np.zeros(BUCKETS, dtype=np.int64)
        """By bucket, the number of the last adoption that its rows went through; 0: of none."""
        self.steps = 0
        """Steps of all workers that were pushed here."""
        self._applied: dict[str, NDArray[np.int64]] = {}
        """By worker: the newest sequence that each bucket took."""

    # ---- workers

    def add_table(self, text: str) -> Table:
        """Return the table of these settings. Raises ValueError where it has others."""
        settings = read_settings(text)
        known = self.tables.get(settings.name)
        if known is None:
            known = self.tables[settings.name] = Table(settings)
            for watcher in self.watchers:
                watcher(known)
        elif (found := write_settings(known.settings)) != text:
            raise ValueError(
                f"table {settings.name!r} is here with other settings: expected {found}, found "
                f"{text}; give the table another name, or start new servers"
            )
        return known

    def pull(
        self,
        worker: str,
        table: str,
        ids: Ids,
        clock: int,
        staleness: int,
        now: float,
        *,
        adopted: int | None = None,
    ) -> tuple[Verdict, torch.Tensor | None]:
        """Raises ValueError where they can't be ids, or rows were adopted later than `adopted`."""
        check_ids(table, ids)
        words = hash_ids(ids)
        verdict = self._verdict(worker, [table], [buckets_of(words)], adopted)
        if verdict is not Verdict.DONE:
            return verdict, None
        if clock != READS_ONLY:
            self.clocks.tell(worker, clock, now)
        if self.clocks.too_far(worker, clock, staleness, now):
            return Verdict.LATER, None
        return verdict, self.tables[table].pull(ids, words)

    def push(
        self,
        worker: str,
        sequence: int,
        gradients: Sequence[Gradients],
        now: float,
        *,
        adopted: int | None = None,
    ) -> Verdict:
        """Raises ValueError, and does nothing, where they don't fit their tables, or rows were
        adopted later than `adopted`."""
        for one in gradients:
            check_ids(one.table, one.ids)
        names = [one.table for one in gradients]
        touched = [buckets(one.ids) for one in gradients]
        verdict = self._verdict(worker, names, touched, adopted)
        if verdict is not Verdict.DONE:
            return verdict
        for one in gradients:
            width = self.tables[one.table].settings.width
            if len(one.seen) != len(one.ids) or one.sums.shape != (len(one.ids), width):
                raise ValueError(
                    f"{len(one.ids)} ids for table {one.table!r}: expected as many counts and "
                    f"rows of {width}, found {len(one.seen)} and {tuple(one.sums.shape)}"
                )
        new_step = sequence > self.clocks.steps[worker]
        self.steps += new_step
        applied = self._applied.setdefault(worker, np.zeros(BUCKETS, dtype=np.int64))
        for one, where in zip(gradients, touched, strict=True):
            fresh = applied[where] < sequence
            if fresh.all() and (new_step or len(where)):
                self.tables[one.table].update(one.ids, one.seen, one.sums, one.lr, counts=new_step)
            elif fresh.any():
                rows = torch.from_numpy(fresh)
                self.tables[one.table].update(
                    one.ids[fresh], one.seen[fresh], one.sums[rows], one.lr, counts=new_step
                )
        for where in touched:
            applied[where] = np.maximum(applied[where], sequence)
        self.clocks.tell(worker, sequence, now)
        return verdict

    def forget_silent(self, now: float) -> None:
        for worker in self.clocks.forgotten(now):
            self._applied.pop(worker, None)

    def refuse_adopted(self, of: Buckets, after: int | None) -> None:
        """Raises ValueError where some of these buckets went through a later adoption."""
        if after is not None and (self.adopted[of] > after).any():
            raise ValueError(BEHIND)

    def _verdict(
        self,
        worker: str,
        tables: Sequence[str],
        touched: Sequence[Buckets],
        adopted: int | None,
    ) -> Verdict:
        if worker not in self.clocks.steps or any(one not in self.tables for one in tables):
            return Verdict.NOT_OPEN
        for where in touched:
            if not self.held[where].all():
                return Verdict.NOT_OWNER
            self.refuse_adopted(where, adopted)
            if self.frozen[where].any():
                return Verdict.LATER
        return Verdict.DONE

    # ---- buckets that come and go

    def applied_in(self, given: Buckets) -> dict[str, NDArray[np.int64]]:
        """Return the newest sequences that these buckets took, by worker."""
        return {worker: applied[given] for worker, applied in self._applied.items()}

    def hold(
        self,
        given: Buckets,
        applied: Mapping[str, NDArray[np.int64]],
        steps: Mapping[str, int],
        turns: NDArray[np.int64] | int,
        adopted: NDArray[np.int64] | int = 0,
    ) -> None:
        """Hold these buckets, whose rows are here, with what they have taken of each worker."""
        for worker, sequences in applied.items():
            mine = self._applied.setdefault(worker, np.zeros(BUCKETS, dtype=np.int64))
            mine[given] = sequences
        for name, step in steps.items():
            if (table := self.tables.get(name)) is not None:
                table.step = max(table.step, step)
        self.held[given] = True
        self.turns[given] = turns
        self.adopted[given] = adopted

    def drop_rows(self, given: Buckets) -> None:
        """Have no rows of these buckets, held or not."""
        for table in self.tables.values():
            table.drop(given.tolist())

    @property
    def rows(self) -> int:
        return sum(len(table) for table in self.tables.values())
