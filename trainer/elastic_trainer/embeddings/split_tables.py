"""SplitTables: a model's tables in step with its training, whichever ranks hold them.

A step's gradients reach their holders before anybody applies it: a rank that passes the barrier of
`push` knows that all others have received theirs. So of survivors that stand on both sides of a
step, those behind apply what they received, and all stand where the most advanced one does.

Buckets move likewise, some megabytes of them between two steps: received ones are held before the
barrier, given ones are dropped behind it. Where it breaks some buckets are held twice, in the same
state, and none is held by nobody.

A holder that is lost takes its buckets with it: their backup's copies go on (backup.py), which has
received and applied the same steps. Where there is none all ranks go back to the newest commit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from elastic_trainer.checkpoint.model_state import MismatchError
from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.embeddings.backup import Backup
from elastic_trainer.embeddings.bucket_exchange import swap_buckets
from elastic_trainer.embeddings.changed_ids import ChangedIds
from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.owner_map import (
    NOBODY,
    OwnerMap,
    assign,
    assign_to,
    in_pieces,
    keepers_in,
    moves,
    parts_after_a_step,
)
from elastic_trainer.embeddings.split_table import SplitTable, check_modules
from elastic_trainer.embeddings.table import Table
from elastic_trainer.embeddings.table_files import Part, read_tables, write_tables
from elastic_trainer.embeddings.table_meter import TableMeter
from elastic_trainer.identity import GRACE_SECONDS, GRACE_VARIABLE
from elastic_trainer.metrics.table_load import TableLoad
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.storage import Storage

MOST_CHANGES = 8
"""Saves of what changed that follow one with all rows."""
PIECE_BYTES = 8 << 20
"""Bytes of buckets that a rank gives or takes between two steps."""
LEAVE_SECONDS = 5.0
"""In which ranks that leave give their buckets away, while training goes on."""
LATEST = 0.6
"""How much later they may have, in that time. So a fifth is left of what the coordinator keeps for
a leaver's last round, for the fence and a commit."""


class SplitTables:
    """Keeps ElasticEmbeddings in step. ElasticLoop makes and calls one; a loop of your own does

        tables = SplitTables([model.items, model.users])
        with Checkpointer(..., tables=tables) as checkpointer:  # without it: tables.begin()
            for batch in data:
                (data.weight * loss(model(batch))).backward()
                optimizer.step()
                tables.step()                    # on all ranks
                checkpointer.step()

    Args:
        modules: ElasticEmbeddings, the same ones in the same order on all ranks.

    Raises:
        TypeError: they aren't ElasticEmbeddings.
        ValueError: two have one name.
    """

    name = "elastic_trainer.embeddings"

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._embeddings: Sequence[SplitTable] = check_modules(modules)
        backed_up = [one.backup for one in self._embeddings]
        if any(backed_up) and not all(backed_up):
            raise ValueError(
                "some tables have backup=True and some haven't: expected all or none, since a lost "
                "rank's part of one table is enough to go back to a commit"
            )
        self._backup = Backup(self._embeddings) if all(backed_up) else None
        self._meter = TableMeter([one.table for one in self._embeddings])
        self._group = ProcessGroup()
        self._held: set[int] = set(range(BUCKETS))
        self._identity = NOTHING
        """Identity of the tables' state."""
        self._pending: tuple[Identity, list[Update], list[Update]] | None = None
        """A step that this rank has received, and not applied; that of its copies last."""
        self._newest = NOTHING
        """The newest live state that any rank had when they met."""
        self._present: list[int] = []
        """By bucket, who had it in that state; NOBODY where a holder is gone."""
        self._copied: list[int] = []
        """By bucket, who else had a copy of it; NOBODY where that one is gone."""
        self._files: dict[str, Any] = {}
        """The parts of the commit that was saved or restored last."""
        self._loaded: dict[str, Any] = {}
        """Those that this rank has loaded for its round, and that `level` needn't load."""
        self._changed: list[ChangedIds] = []
        """Changes since the last save of this round; empty: there is none to be followed."""
        self._base = NOTHING
        """Identity of the save that has all rows."""
        self._alone = False
        """True where no commit stood on another one when the last save was written."""
        self._left: list[OwnerMap] = []
        """Buckets that are still to be moved, as who holds what after each part of them."""
        self._leaving: tuple[bool, ...] = ()
        """By rank, who leaves, once that is known."""
        self._gone_by = 0.0
        """When the first of them is to have given all away."""
        grace = float(os.environ.get(GRACE_VARIABLE) or GRACE_SECONDS)
        self._leave_seconds = min(LEAVE_SECONDS, grace / 6)
        """How long they take for it, where that stops no step for long."""
        self._grace = grace
        self._last_step_by = 0.0
        """When half of the first one's grace is over: whatever is left then goes at once."""
        self._stepped_since = 0.0
        """When what is moved between two steps had moved last: the next step began."""
        self._leave_parts = 0
        """How many parts of theirs have moved."""
        self._leave_parts_seconds = 0.0
        """How long these took."""

    # ---- a loop of one's own

    def begin(self) -> None:
        """Divide empty tables among the ranks of torch's process group; Checkpointer does it."""
        if self._identity != NOTHING:
            raise RuntimeError(
                f"begin() empties the tables, which are at step {self.steps}: expected it once, "
                "before the first step, and not where Checkpointer has tables=, which begins them"
            )
        self._group = ProcessGroup.current()
        self._start_empty(0)

    def step(self) -> None:
        """Apply the gradients of all forward passes since the last one. On all ranks."""
        self.end_batch(counts=True)
        self.push((0, self._identity[1] + 1))
        self.apply()

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return cast("Sequence[torch.nn.Module]", self._embeddings)

    @property
    def steps(self) -> int:
        return self._identity[1]

    def follow(self, data: ElasticData) -> None:
        for one in self._embeddings:
            one.follow(data)

    # ---- a step

    def begin_batch(self) -> None:
        for one in self._embeddings:
            one.begin_batch()

    def end_batch(self, *, counts: bool) -> None:
        for one in self._embeddings:
            one.end_batch(counts)

    def push(self, identity: Identity) -> None:
        updates = [one.push() for one in self._embeddings]
        copied = []
        if self._backup is not None:
            copied = self._backup.copied(updates, self._embeddings[0].owners, self._group)
        self._pending = identity, updates, copied
        if self._group.world > 1:
            self._group.barrier()

    def apply(self) -> None:
        assert self._pending is not None
        identity, updates, copied = self._pending
        for one, update in zip(self._embeddings, updates, strict=True):
            one.apply_update(update)
        self._meter.applied(updates)
        if self._backup is not None:
            self._backup.apply(copied)
        self._identity, self._pending = identity, None

    def undo(self) -> None:
        for one in self._embeddings:
            one.forget_batches()

    def loads(self, now: float) -> dict[str, TableLoad] | None:
        """Return by name what this rank holds of the tables, once in ten seconds; else None.

        Args:
            now: seconds of a clock that goes on.
        """
        return self._meter.loads(now)

    # ---- a round

    def meet(self, group: ProcessGroup, live: Identity) -> bool:
        self._group, self._loaded = group, {}
        received = self._pending[0] if self._pending is not None else NOTHING
        copies = self._backup.held if self._backup is not None else ()
        said = group.gather((live, self._identity, received, sorted(self._held), sorted(copies)))
        self._newest = max(one for one, *_ in said)
        self._present, self._copied = [NOBODY] * BUCKETS, [NOBODY] * BUCKETS
        there = [
            (rank, one[3], one[4])
            for rank, one in enumerate(said)
            if self._newest != NOTHING and self._newest in one[1:3]
        ]
        for rank, mine, _ in there:
            _fill(self._present, mine, rank)
        for rank, _, kept in there:  # copies where there is no holder
            _fill(self._present, kept, rank)
        for rank, _, kept in there:
            _fill(self._copied, [one for one in kept if self._present[one] != rank], rank)
        return NOBODY not in self._present

    def level(self, identity: Identity, version: int, storage: Storage) -> None:
        self._save_all_next()  # buckets may come to be another's
        self._left, self._leaving = [], ()
        if identity == self._newest and NOBODY not in self._present:
            self._catch_up(identity)
            present = OwnerMap(version, tuple(self._present), tuple(self._copied))
            mine = set(present.held_by(self._group.rank))
            self._take_copies(mine - self._held)
            self._drop(self._held - mine)
            self._keep_only(present)
            self._begin_moving(present)
        elif identity != NOTHING:
            if self._loaded != self._files:  # a peer gave the rest of the state
                self.load(storage, self._files)
            self._begin_moving(OwnerMap.even(version, self._group.world))  # copies
        elif self._newest == NOTHING:
            self._start_empty(version)
        else:
            raise StorageError(
                f"a rank was lost with its part of the tables, of step {self._newest[1]}, and "
                f"{storage.location} has no commit to go back to: expected one of step 0 at least"
            )
        self._identity, self._pending = identity, None
        if self._backup is not None:
            self._backup.keep_step()

    def hand_over(self, leaving: Sequence[bool]) -> bool:
        if not any(leaving) or all(leaving):
            return True
        now = time.monotonic()
        step_seconds = now - self._stepped_since
        if not any(self._leaving):
            self._gone_by = now + self._leave_seconds
            self._last_step_by = now + self._grace / 2
            self._leave_parts, self._leave_parts_seconds = 0, 0.0
        if tuple(leaving) != self._leaving:
            # From where the rows are now, which may be with who begins to leave as well.
            self._leaving = tuple(leaving)
            self._left = self._pieces(self._embeddings[0].owners, self._without(leaving))
        moved = self._leave_parts
        parts = parts_after_a_step(
            len(self._left),
            step_seconds,
            self._leave_parts_seconds / moved if moved else None,
            self._gone_by - now,
            LATEST * self._leave_seconds,
            self._last_step_by - now,
        )
        began = time.monotonic()
        # The ranks' clocks differ: as many as any of them says, which goes along with the first.
        parts = self._move_part(parts)
        for _ in range(parts - 1):
            self.move_on()
        self._stepped_since = time.monotonic()
        self._leave_parts += parts
        self._leave_parts_seconds += self._stepped_since - began
        return not self._left

    def _without(self, leaving: Sequence[bool]) -> OwnerMap:
        """Return the map in which those who stay have all."""
        stays = [rank for rank, leaves in enumerate(leaving) if not leaves]
        return self._with_keepers(assign_to(self._embeddings[0].owners, stays), stays)

    def _catch_up(self, identity: Identity) -> None:
        """Come to this state, if it isn't this rank's already."""
        if self._identity == identity:
            return
        if self._pending is not None and self._pending[0] == identity:
            self.apply()
        else:
            self._hold_nothing()

    def _take_copies(self, wanted: set[int]) -> None:
        """Become the holder of buckets of which this rank has a lost one's copies."""
        if not wanted:
            return
        assert self._backup is not None
        self._backup.restore(wanted)
        self._held |= wanted

    def _hold_nothing(self) -> None:
        for one in self._embeddings:
            one.table.clear()
        self._held = set()
        self._pending = None
        if self._backup is not None:
            self._backup.clear()

    def _keep_only(self, present: OwnerMap) -> None:
        """Keep the copies of this map, and no others that were on their way."""
        if self._backup is not None:
            self._backup.drop(self._backup.held - set(present.kept_by(self._group.rank)))

    def _drop(self, given: set[int]) -> None:
        if not given:
            return
        for one in self._embeddings:
            one.table.drop(given)
        self._held -= given

    def _set_owners(self, owners: OwnerMap) -> None:
        for one in self._embeddings:
            one.owners, one.group = owners, self._group
        self._held = set(owners.held_by(self._group.rank))

    def _start_empty(self, version: int) -> None:
        self._hold_nothing()
        world = self._group.world
        owners = self._with_keepers(OwnerMap.even(version, world), range(world))
        self._set_owners(owners)
        if self._backup is not None:
            self._backup.held = set(owners.kept_by(self._group.rank))

    def _with_keepers(self, owners: OwnerMap, ring: Sequence[int]) -> OwnerMap:
        """Return the map with a copy of each bucket at another one of these ranks, if there are to
        be copies."""
        if self._backup is None:
            return owners
        return owners.with_keepers(keepers_in(ring, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))

    def _begin_moving(self, present: OwnerMap) -> None:
        """Let the round begin with buckets where they are, and move them between its steps; at once
        where that takes no longer than a step may."""
        self._set_owners(present)
        target = assign(present.version, present.owners, self._group.world)
        self._count_alike()
        self._left = self._pieces(present, self._with_keepers(target, range(self._group.world)))
        if len(self._left) <= 1:
            self.move_on()

    def _count_alike(self) -> None:
        """Have all ranks' tables count steps as those of the newest state."""
        steps = self._group.gather([one.table.step for one in self._embeddings])
        for one, step in zip(self._embeddings, np.max(steps, axis=0), strict=True):
            one.table.step = int(step)

    def _pieces(self, present: OwnerMap, target: OwnerMap) -> list[OwnerMap]:
        """Return the way from one map to another, in parts that take no longer than a step may."""
        nbytes = sum(
            (rows.counts * rows.row_bytes for one in self._embeddings for rows in one.table.stores),
            np.zeros(BUCKETS, dtype=np.int64),
        )
        sizes = np.sum(self._group.gather(nbytes), axis=0)
        return in_pieces(present, target, sizes, PIECE_BYTES)

    @property
    def moving(self) -> bool:
        """Tell whether `move_on` has something to do."""
        return bool(self._left)

    def move_on(self) -> None:
        self._move_part()

    def _move_part(self, said: int = 0) -> int:
        """Move a part, if one is left. Return the greatest number that any rank says with it."""
        self._stepped_since = time.monotonic()
        if not self._left:
            return said
        self._save_all_next()  # nobody here knows what changed of rows that come
        return self._move(self._left.pop(0), said)

    def _move(self, owners: OwnerMap, said: int) -> int:
        """Go on to this map: give what is held here to who has it then, and take what others
        give."""
        mine = moves(self._embeddings[0].owners, owners, self._group.rank, self._group.world)
        tables = [one.table for one in self._embeddings]
        backup = self._backup
        if self._group.world > 1:
            pairs = list(zip(tables, tables, strict=True))
            said = swap_buckets(pairs, mine.goes, mine.comes, said)
            self._held |= set().union(*mine.comes)
            if backup is not None:
                copies = list(zip(tables, backup.copies, strict=True))
                swap_buckets(copies, mine.copies_go, mine.copies_come)
                backup.held |= set().union(*mine.copies_come)
                backup.take(mine.demoted)
            self._take_copies(set(mine.promoted))
            self._group.barrier()
        if backup is not None:
            backup.drop(mine.copies_dropped)
        self._drop(set(mine.dropped))
        self._set_owners(owners)
        return said

    # ---- commits

    def save(self, storage: Storage, identity: Identity) -> None:
        """Write what changed since the last save, or all: at first, after each round, once many
        saves would have to be read, and where a damaged file of the last one could take all
        commits."""
        earlier = [*self._files.get("before", ()), self._files]
        if not self._changed or len(earlier) > MOST_CHANGES or self._alone:
            earlier = []
            self._save_all_next()  # until this one is whole
            self._base = identity
        base = self._base if earlier else None
        try:
            parts = self._parts()
            files, self._alone = write_tables(storage, self._group, identity, parts, base)
        except BaseException:
            self._save_all_next()  # what was taken of the changes is in no save
            raise
        if not earlier:
            self._changed = [ChangedIds(one.table) for one in self._embeddings]
        before = [{key: one[key] for key in ("place", "files")} for one in earlier]
        self._files = {**files, "before": before}

    def _parts(self) -> dict[str, Part]:
        """Take what changed since the last save, or all where that isn't known."""
        changed: list[torch.Tensor | None] = [None] * len(self._embeddings)
        if self._changed:
            changed = [torch.from_numpy(one.take()) for one in self._changed]
        return {
            one.name: _part(one.table, ids)
            for one, ids in zip(self._embeddings, changed, strict=True)
        }

    def _save_all_next(self) -> None:
        for one in self._changed:
            one.stop()
        self._changed = []

    def state_dict(self) -> dict[str, Any]:
        return dict(self._files)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._files = dict(state_dict)

    def load(self, storage: Storage, saved: Mapping[str, Any]) -> None:
        if not saved:
            raise MismatchError(
                f"the commit in {storage.location} has no tables: expected those of "
                f"{', '.join(one.name for one in self._embeddings)}; start in a new folder"
            )
        self._hold_nothing()
        mine = set(OwnerMap.even(0, self._group.world).held_by(self._group.rank))
        expected = {one.name: one.table.settings.describe() for one in self._embeddings}
        for parts in read_tables(storage, saved, expected):
            for one in self._embeddings:
                _read(one.table, parts[one.name], mine)
        self._loaded = dict(saved)


def _fill(places: list[int], with_: Sequence[int], rank: int) -> None:
    """Put this rank into these places, where there is nobody yet."""
    for bucket in with_:
        if places[bucket] == NOBODY:
            places[bucket] = rank


def _part(table: Table, ids: torch.Tensor | None) -> Part:
    entries = table.entries() if ids is None else table.entries_of(ids.numpy())
    return Part(table.settings.describe(), table.step, entries, ids)


def _read(table: Table, part: Part, mine: set[int]) -> None:
    """Hold what a save has of these buckets."""
    entries = part.entries.of_buckets(mine)
    if part.ids is None:
        table.put(entries)
    else:
        ids = part.ids.numpy()
        table.replace(ids[np.isin(buckets(ids), list(mine))], entries)
    table.step = part.step
