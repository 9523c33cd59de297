"""SplitTables: a model's tables in step with its training, whichever ranks hold them.

A step's gradients reach their holders before anybody applies it: a rank that passes the barrier of
`push` knows that all others have received theirs. So of survivors that stand on both sides of a
step, those behind apply what they received, and all stand where the most advanced one does.

Buckets move likewise: received ones are held before the barrier, given ones are dropped behind it.
Where it breaks some buckets are held twice, in the same state, and none is held by nobody.

A holder that is lost takes its buckets with it: their backup's copies go on (backup.py), which has
received and applied the same steps. Where there is none all ranks go back to the newest commit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.embeddings.backup import Backup
from elastic_trainer.embeddings.bucket_exchange import swap_buckets
from elastic_trainer.embeddings.changed_ids import ChangedIds
from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.owner_map import NOBODY, OwnerMap, assign, in_pieces
from elastic_trainer.embeddings.split_table import SplitTable
from elastic_trainer.embeddings.table import Table
from elastic_trainer.embeddings.table_files import Part, read_tables, write_tables
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.storage import Storage

MOST_CHANGES = 8
"""Saves of what changed that follow one with all rows."""
PIECE_BYTES = 8 << 20
"""Bytes of buckets that a rank gives or takes between two steps."""


class SplitTables:
    """Keeps ElasticEmbeddings in step. ElasticLoop makes and calls one; a loop of your own does

        tables = SplitTables([model.items, model.users])
        tables.begin()                       # once the process group is there
        for batch in batches:
            loss(model(batch)).backward()
            optimizer.step()
            tables.step()                    # on all ranks

    Args:
        modules: ElasticEmbeddings, the same ones in the same order on all ranks.

    Raises:
        ValueError: two have one name.
    """

    name = "elastic_trainer.embeddings"

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._embeddings = cast("Sequence[SplitTable]", modules)
        names = [one.name for one in self._embeddings]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"several tables are named {', '.join(twice)}: expected a name of its own for "
                "each; for several features of one table, call one ElasticEmbedding for each"
            )
        backed_up = [one.backup for one in self._embeddings]
        if any(backed_up) and not all(backed_up):
            raise ValueError(
                "some tables have backup=True and some haven't: expected all or none, since a lost "
                "rank's part of one table is enough to go back to a commit"
            )
        self._backup = Backup(self._embeddings) if all(backed_up) else None
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
        self._files: dict[str, Any] = {}
        """The parts of the commit that was saved or restored last."""
        self._changed: list[ChangedIds] = []
        """Changes since the last save of this round; empty: there is none to be followed."""
        self._base = NOTHING
        """Identity of the save that has all rows."""
        self._left: list[OwnerMap] = []
        """Buckets that are still to be moved, as who holds what after each part of them."""

    # ---- a loop of one's own

    def begin(self) -> None:
        """Divide empty tables among the ranks of torch's process group."""
        self._group = ProcessGroup.current()
        self._start_empty(0)

    def step(self) -> None:
        """Apply the gradients of all forward passes since the last one. On all ranks."""
        self.end_batch(counts=True)
        self.push((0, self._identity[1] + 1))
        self.apply()

    # ---- a step

    def begin_batch(self) -> None:
        for one in self._embeddings:
            one.begin_batch()

    def end_batch(self, *, counts: bool) -> None:
        for one in self._embeddings:
            one.end_batch(counts)

    def push(self, identity: Identity) -> None:
        updates = [one.push() for one in self._embeddings]
        copied = self._backup.copied(updates) if self._backup is not None else []
        self._pending = identity, updates, copied
        if self._group.world > 1:
            self._group.barrier()

    def apply(self) -> None:
        assert self._pending is not None
        identity, updates, copied = self._pending
        for one, update in zip(self._embeddings, updates, strict=True):
            one.apply_update(update)
        if self._backup is not None:
            self._backup.apply(copied)
        self._identity, self._pending = identity, None

    def undo(self) -> None:
        for one in self._embeddings:
            one.forget_batches()

    # ---- a round

    def meet(self, group: ProcessGroup, live: Identity) -> bool:
        self._group = group
        received = self._pending[0] if self._pending is not None else NOTHING
        copies = self._backup.held if self._backup is not None else ()
        said = group.gather((live, self._identity, received, sorted(self._held), sorted(copies)))
        self._newest = max(one for one, *_ in said)
        self._present = [NOBODY] * BUCKETS
        for place in (3, 4):  # copies where there is no holder
            for rank, one in enumerate(said):
                if self._newest != NOTHING and self._newest in one[1:3]:
                    for bucket in one[place]:
                        if self._present[bucket] == NOBODY:
                            self._present[bucket] = rank
        return NOBODY not in self._present

    def level(self, identity: Identity, version: int, storage: Storage) -> None:
        self._save_all_next()  # buckets may come to be another's
        self._left = []
        if identity == self._newest and NOBODY not in self._present:
            self._catch_up(identity)
            mine = {one for one, rank in enumerate(self._present) if rank == self._group.rank}
            self._take_copies(mine - self._held)
            self._drop(self._held - mine)
            self._begin_moving(version)
        elif identity != NOTHING:
            self._load(version, storage)
        elif self._newest == NOTHING:
            self._start_empty(version)
        else:
            raise StorageError(
                f"a rank was lost with its part of the tables, of step {self._newest[1]}, and "
                f"{storage.location} has no commit to go back to: expected one of step 0 at least"
            )
        self._identity, self._pending = identity, None
        if self._backup is not None:
            local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._backup.renew(self._group, self._embeddings[0].owners.owners, local_world)

    def hand_over(self, leaves: bool) -> None:
        leaving = self._group.gather(leaves)
        if not any(leaving) or all(leaving) or self._group.world == 1:
            return
        self._left = []
        stays = [rank for rank, one in enumerate(leaving) if not one]
        number = {rank: place for place, rank in enumerate(stays)}
        owners = self._embeddings[0].owners
        present = [number.get(owner, NOBODY) for owner in owners.owners]
        target = assign(owners.version + 1, present, len(stays))
        self._move(OwnerMap(target.version, tuple(stays[one] for one in target.owners)))

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
        self._set_owners(OwnerMap.even(version, self._group.world))

    def _begin_moving(self, version: int) -> None:
        """Let the round begin with buckets where they are, and move them between its steps; at once
        where that takes no longer than a step may, or where each has a second holder."""
        present = OwnerMap(version, tuple(self._present))
        target = assign(version, self._present, self._group.world)
        tables = [one.table for one in self._embeddings]
        nbytes = sum(
            (rows.counts * rows.row_bytes for one in tables for rows in one.stores),
            np.zeros(BUCKETS, dtype=np.int64),
        )
        said = self._group.gather(([one.step for one in tables], nbytes))
        for one, step in zip(tables, np.max([steps for steps, _ in said], axis=0), strict=True):
            one.step = int(step)
        sizes = np.sum([sizes for _, sizes in said], axis=0)
        pieces = in_pieces(present, target, sizes, PIECE_BYTES)
        self._set_owners(present)
        if self._backup is not None or len(pieces) <= 1:
            self._move(target)
        else:
            self._left = pieces

    @property
    def moving(self) -> bool:
        """Tell whether `move_on` has something to do."""
        return bool(self._left)

    def move_on(self) -> None:
        if not self._left:
            return
        self._save_all_next()  # nobody here knows what changed of rows that come
        self._move(self._left.pop(0))

    def _move(self, owners: OwnerMap) -> None:
        """Give each bucket that is held here to its owner, and take what others give."""
        if owners.owners == self._embeddings[0].owners.owners or self._group.world == 1:
            self._set_owners(owners)
            return
        goes: list[list[int]] = [[] for _ in range(self._group.world)]
        comes: list[list[int]] = [[] for _ in range(self._group.world)]
        before = self._embeddings[0].owners
        for bucket, (giver, taker) in enumerate(zip(before.owners, owners.owners, strict=True)):
            if giver != taker == self._group.rank:
                comes[giver].append(bucket)
            if taker != giver == self._group.rank:
                goes[taker].append(bucket)
        swap_buckets([(one.table, one.table) for one in self._embeddings], goes, comes)
        self._held |= set().union(*comes)
        self._group.barrier()
        self._drop(set().union(*goes))
        self._set_owners(owners)

    # ---- commits

    def save(self, storage: Storage, identity: Identity) -> None:
        """Write what changed since the last save, or all: at first, after each round, and once many
        saves would have to be read."""
        earlier = [*self._files.get("before", ()), self._files]
        if not self._changed or len(earlier) > MOST_CHANGES:
            earlier = []
            self._save_all_next()  # until this one is whole
            self._base = identity
        base = self._base if earlier else None
        try:
            files = write_tables(storage, self._group, identity, self._parts(), base)
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

    def _load(self, version: int, storage: Storage) -> None:
        if not self._files:
            raise StorageError(
                f"the commit in {storage.location} has no tables: expected those of "
                f"{', '.join(one.name for one in self._embeddings)}; start in a new folder"
            )
        self._hold_nothing()
        owners = OwnerMap.even(version, self._group.world)
        mine = set(owners.held_by(self._group.rank))
        expected = {one.name: one.table.settings.describe() for one in self._embeddings}
        for parts in read_tables(storage, self._files, expected):
            for one in self._embeddings:
                _read(one.table, parts[one.name], mine)
        self._set_owners(owners)


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
