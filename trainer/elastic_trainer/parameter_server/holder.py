"""Holder: the buckets of one server, and what becomes of each request. No I/O, one thread.

A worker's push is known by (worker, sequence), and each bucket keeps the newest sequence that it
took of each worker. These go along where the bucket goes, so a push that is sent again changes
nothing twice, whichever servers its parts have been sent to, and how often.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_trainer.embeddings.changed_ids import ChangedIds, distinct
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets, buckets_of, hash_ids
from elastic_trainer.embeddings.table import Table
from elastic_trainer.parameter_server.clocks import Clocks
from elastic_trainer.parameter_server.hot_ids import HotIds
from elastic_trainer.parameter_server.wire import read_settings, unpack_entries, write_settings

Buckets = NDArray[np.int64]
READS_ONLY = -1
"""The clock of a pull that no push follows: nobody waits for who only evaluates."""
HOT_STEPS, HOT_ROWS = 64, 2048
"""Hot rows: seen in so many of the last steps, most often of all; at most so many a move."""
ROWS_TOGETHER = 1 << 16
"""So many rows of a move's, or a bucket's, are looked up at a time, between which requests are
served."""
EVERY_BUCKET: Buckets = np.arange(BUCKETS)


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


class Changes:
    """Ids of some buckets that were changed since they were last asked for, by table."""

    def __init__(self, of: Buckets) -> None:
        self.buckets = of
        self._wanted = np.zeros(BUCKETS, dtype=bool)
        self._wanted[of] = True
        self._changed: dict[str, ChangedIds] = {}

    def watch(self, table: Table) -> None:
        self._changed[table.settings.name] = ChangedIds(table)

    def stop(self) -> None:
        for one in self._changed.values():
            one.stop()

    def take(self, table: str) -> Ids:
        ids = self._changed[table].take()
        return ids[self._wanted[buckets(ids)]]


@dataclass
class Since:
    """Changes of rows since a save."""

    covered: NDArray[np.bool_]
    """Buckets that were held all the time, whose changes are known."""
    changed: dict[str, Ids]
    """By table."""


def _watch_of(save: str) -> str:
    return f"save {save}"


class Holder:
    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.clocks = Clocks()
        self.held = np.zeros(BUCKETS, dtype=bool)
        self.frozen = np.zeros(BUCKETS, dtype=bool)
        """Held, and on their way to another server."""
        self.turns = np.zeros(BUCKETS, dtype=np.int64)
        """By bucket, the turn by which it came here; of one with two holders' rows, the later one's
        are newer."""
        self._given: dict[str, NDArray[np.bool_]] = {}
        """By the life that took them, buckets whose rows are kept until it has a copy of them."""
        self.steps = 0
        """Steps of all workers that were pushed here."""
        self._applied: dict[str, NDArray[np.int64]] = {}
        """By worker: the newest sequence that each bucket took."""
        self._coming: dict[str, tuple[str, Buckets]] = {}
        """By move: the life of the server that is giving, and buckets."""
        self._taken: set[str] = set()
        self._watched: dict[str, Changes] = {}
        self._saves: dict[str, Since] = {}
        self._hot: dict[str, dict[str, HotIds]] = {}
        """By move and table, the ids whose rows are copied last."""

    # ---- workers

    def add_table(self, text: str) -> Table:
        """Return the table of these settings. Raises ValueError where it has others."""
        settings = read_settings(text)
        known = self.tables.get(settings.name)
        if known is None:
            known = self.tables[settings.name] = Table(settings)
            for changes in self._watched.values():
                changes.watch(known)
        elif (found := write_settings(known.settings)) != text:
            raise ValueError(
                f"table {settings.name!r} is here with other settings: expected {found}, found "
                f"{text}; give the table another name, or start new servers"
            )
        return known

    def pull(
        self, worker: str, table: str, ids: Ids, clock: int, staleness: int, now: float
    ) -> tuple[Verdict, torch.Tensor | None]:
        check_ids(table, ids)
        words = hash_ids(ids)
        verdict = self._verdict(worker, [table], [buckets_of(words)])
        if verdict is not Verdict.DONE:
            return verdict, None
        if clock != READS_ONLY:
            self.clocks.tell(worker, clock, now)
        if self.clocks.too_far(worker, clock, staleness, now):
            return Verdict.LATER, None
        return verdict, self.tables[table].pull(ids, words)

    def push(
        self, worker: str, sequence: int, gradients: Sequence[Gradients], now: float
    ) -> Verdict:
        """Raises ValueError, and does nothing, where they don't fit their tables."""
        for one in gradients:
            check_ids(one.table, one.ids)
        names = [one.table for one in gradients]
        touched = [buckets(one.ids) for one in gradients]
        verdict = self._verdict(worker, names, touched)
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

    def _verdict(self, worker: str, tables: Sequence[str], touched: Sequence[Buckets]) -> Verdict:
        if worker not in self.clocks.steps or any(one not in self.tables for one in tables):
            return Verdict.NOT_OPEN
        for where in touched:
            if not self.held[where].all():
                return Verdict.NOT_OWNER
            if self.frozen[where].any():
                return Verdict.LATER
        return Verdict.DONE

    # ---- giving

    def begin_giving(self, move: str, given: Buckets) -> None:
        """Watch these buckets' changes."""
        self.watch(move, given)
        most = HOT_ROWS // max(1, len(self.tables))
        self._hot[move] = {
            name: HotIds(table, HOT_STEPS, most) for name, table in self.tables.items()
        }

    def find_hot(self, move: str, part: Buckets) -> None:
        """Find hot rows in some of the move's buckets. They would change again before these are
        frozen: only `freeze` returns them."""
        for hot in self._hot[move].values():
            hot.look_into(part)

    def some_at_a_time(self, of: Buckets) -> list[Buckets]:
        """Cut buckets into parts that are small enough to look at all their rows at once."""
        rows = np.zeros(BUCKETS, dtype=np.int64)
        for table in self.tables.values():
            rows += table.counts
        part = np.cumsum(rows[of]) // ROWS_TOGETHER
        return np.split(of, np.flatnonzero(np.diff(part)) + 1)

    def ids_in(self, part: Buckets, move: str = "") -> dict[str, Ids]:
        """Return the ids of what is here of these buckets, by table; not the move's hot rows."""
        return {
            name: self._not_hot(move, name, table.ids_in(part.tolist()))
            for name, table in self.tables.items()
        }

    def changed(self, move: str) -> dict[str, Ids]:
        """Return the ids that were changed since this was last asked, by table; not hot rows'."""
        changes = self._watched[move]
        found = {name: self._not_hot(move, name, changes.take(name)) for name in self.tables}
        return {name: ids for name, ids in found.items() if len(ids)}

    def _not_hot(self, move: str, table: str, ids: Ids) -> Ids:
        hot = self._hot.get(move, {}).get(table)
        return ids if hot is None else hot.left_out(ids)

    def watch(self, name: str, of: Buckets) -> None:
        """Keep the ids of these buckets that are changed from now on, for `changed`."""
        changes = self._watched[name] = Changes(of)
        for table in self.tables.values():
            changes.watch(table)

    def unwatch(self, name: str) -> None:
        self._watched.pop(name).stop()

    def freeze(self, move: str) -> dict[str, Ids]:
        """Have requests of the move's buckets put off; return the hot rows' ids, by table."""
        self.frozen[self._watched[move].buckets] = True
        return {name: hot.ids for name, hot in self._hot[move].items() if len(hot.ids)}

    def applied_in(self, given: Buckets) -> dict[str, NDArray[np.int64]]:
        """Return the newest sequences that these buckets took, by worker."""
        return {worker: applied[given] for worker, applied in self._applied.items()}

    def end_giving(self, move: str, *, taker: str) -> None:
        """Hold the move's buckets no longer. Their rows stay until `forget`, or are held again.

        Args:
            taker: the life that has taken them; empty: it hasn't, so they are held as before.
        """
        of = self._watched[move].buckets
        self.unwatch(move)
        self._hot.pop(move, None)
        self.frozen[of] = False
        if taker:
            self.held[of] = False
            self._given.setdefault(taker, np.zeros(BUCKETS, dtype=bool))[of] = True
            for table in self.tables.values():
                table.rest(of.tolist())
            self._lose(of)

    def given(self) -> dict[str, Buckets]:
        """Return buckets that were given, whose rows are still here, by the life that took them."""
        found = {life: np.flatnonzero(mask) for life, mask in self._given.items()}
        return {life: of for life, of in found.items() if len(of)}

    def forget(self, taker: str, given: Buckets, turns: NDArray[np.int64]) -> None:
        """Forget the rows of buckets that this life took, where they had come by these turns."""
        mask = self._given.get(taker)
        if mask is not None:
            self.drop_rows(given[mask[given] & (self.turns[given] == turns)])

    def hold_again(self, taker: str, given: Buckets, turn: int) -> bool:
        """Hold buckets as they were when this life took them. False where they aren't here."""
        mask = self._given.get(taker)
        if mask is None or not mask[given].all() or self.held[given].any():
            return False
        self._keep_no_longer(given)
        for table in self.tables.values():
            table.wake(given.tolist())
        self.hold(given, {}, {}, turn)
        return True

    # ---- getting

    def expect(self, move: str, given: Buckets, source: str) -> bool:
        """Expect these buckets. False where some are held here: then they aren't another's.

        An older move of one of them has ended with its giver, whom this refuses to take.
        """
        if self.held[given].any():
            return False
        self._expect_no_longer(given)
        self._coming[move] = source, given
        self.drop_rows(given)
        return True

    @property
    def expects_from(self) -> set[str]:
        """Return the lives of servers from which something is coming."""
        return {source for source, _ in self._coming.values()}

    def expect_nothing_from(self, lives: Collection[str]) -> None:
        """Take nothing that these servers, which are gone, were giving."""
        for move in [one for one, (source, _) in self._coming.items() if source in lives]:
            self.drop_rows(self._coming.pop(move)[1])

    def receive(self, move: str, text: str, ids: Ids, entries: list[bytes]) -> bool:
        """Keep a part of what is coming. False where this move isn't expected."""
        if move not in self._coming:
            return False
        table = self.add_table(text)
        table.replace(ids, unpack_entries(entries, table.settings))
        return True

    def receive_bucket(
        self, move: str, text: str, bucket: int, counts: Sequence[int], parts: Sequence[bytes]
    ) -> bool:
        """Keep a bucket of a table that is coming, as it lay in the giver's memory. False where
        this move, or this bucket, isn't expected."""
        if move not in self._coming or bucket not in self._coming[move][1]:
            return False
        self.add_table(text).write_bucket(bucket, counts, parts)
        return True

    def take(
        self,
        move: str,
        given: Buckets,
        applied: dict[str, NDArray[np.int64]],
        steps: dict[str, int],
        turn: int = 0,
    ) -> bool:
        """Hold what has come, whole. False where this holder knows nothing of the move."""
        if move not in self._coming:
            return move in self._taken
        del self._coming[move]
        self._taken.add(move)
        self.hold(given, applied, steps, turn)
        return True

    # ---- copies

    def adopt(self, copy: Holder, given: Buckets, turn: int = 0) -> None:
        """Hold buckets, of which none is held here, as a copy has them."""
        self._expect_no_longer(given)
        self.drop_rows(given)
        for table in copy.tables.values():
            mine = self.add_table(write_settings(table.settings))
            mine.copy(table, given.tolist())
            mine.step = max(mine.step, table.step)
        self.hold(given, copy.applied_in(given), {}, turn)

    def hold(
        self,
        given: Buckets,
        applied: Mapping[str, NDArray[np.int64]],
        steps: Mapping[str, int],
        turns: NDArray[np.int64] | int,
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
        self._lose(given)

    # ---- saves

    def saved(self, save: str, after: str, held: Buckets) -> Since:
        """Return what changed since an earlier save, and remember this one; of saves but these two
        nothing is known any more.

        Args:
            held: what this save has.
        """
        before = self._saves.get(after)
        if before is None:
            before = Since(np.zeros(BUCKETS, dtype=bool), {})
        else:
            # The save that this is for may never come to be: then the next one has them, too.
            for table, ids in self.changed(_watch_of(after)).items():
                known = before.changed.get(table)
                before.changed[table] = (
                    ids if known is None else distinct(np.concatenate([known, ids]))
                )
        for name in set(self._saves) - {after}:
            del self._saves[name]
            self.unwatch(_watch_of(name))
        if save and save != after:
            covered = np.zeros(BUCKETS, dtype=bool)
            covered[held] = True
            self._saves[save] = Since(covered, {})
            self.watch(_watch_of(save), EVERY_BUCKET)
        return before

    def _lose(self, given: Buckets) -> None:
        for since in self._saves.values():
            since.covered[given] = False

    def _expect_no_longer(self, given: Buckets) -> None:
        """Forget moves of any of these buckets, whose givers' lives are over."""
        for old in [one for one, (_, of) in self._coming.items() if np.isin(of, given).any()]:
            self.drop_rows(self._coming.pop(old)[1])

    def _keep_no_longer(self, given: Buckets) -> None:
        for mask in self._given.values():
            mask[given] = False
        self._given = {life: mask for life, mask in self._given.items() if mask.any()}

    def drop_rows(self, given: Buckets) -> None:
        """Have no rows of these buckets, held or not."""
        self._keep_no_longer(given)
        for table in self.tables.values():
            table.drop(given.tolist())

    @property
    def rows(self) -> int:
        return sum(len(table) for table in self.tables.values())
