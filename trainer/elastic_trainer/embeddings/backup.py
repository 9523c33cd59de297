"""Backup: a second copy of each rank's rows in another's memory, so that a holder may be lost.

Each bucket's keeper (OwnerMap) applies the same updates to the same rows as its owner, so the two
are equal bit for bit, and a lost holder's rows go on from its backup's, in the step where all are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from elastic_trainer.embeddings.exchange import Update, swap, swap_counts
from elastic_trainer.embeddings.hashing import buckets
from elastic_trainer.embeddings.owner_map import NOBODY, OwnerMap
from elastic_trainer.embeddings.split_table import SplitTable
from elastic_trainer.embeddings.table import Table
from elastic_trainer.ranks.process_group import ProcessGroup


class Backup:
    """The rows this rank keeps for others.

    Args:
        embeddings: whose rows are kept twice.
    """

    def __init__(self, embeddings: Sequence[SplitTable]) -> None:
        self._embeddings = embeddings
        self.copies = [Table(one.table.settings) for one in embeddings]
        self.held: set[int] = set()
        """Buckets of which a copy is here, as their owner has them."""

    def __len__(self) -> int:
        return sum(len(copy) for copy in self.copies)

    def clear(self) -> None:
        for copy in self.copies:
            copy.clear()
        self.held = set()

    def drop(self, given: Collection[int]) -> None:
        """Keep these no longer."""
        for copy in self.copies:
            copy.drop(given)
        self.held -= set(given)

    def take(self, wanted: Collection[int]) -> None:
        """Keep a copy of these buckets, which the tables here have."""
        for one, copy in zip(self._embeddings, self.copies, strict=True):
            copy.copy(one.table, wanted)
        self.held |= set(wanted)

    def restore(self, wanted: Collection[int]) -> None:
        """Have the tables hold these buckets as they are here."""
        for one, copy in zip(self._embeddings, self.copies, strict=True):
            one.table.copy(copy, wanted)

    def keep_step(self) -> None:
        """Count steps as the tables do."""
        for one, copy in zip(self._embeddings, self.copies, strict=True):
            copy.step = one.table.step

    def copied(
        self, updates: Sequence[Update], owners: OwnerMap, group: ProcessGroup
    ) -> list[Update]:
        """Give this rank's updates to the rows' keepers; return others'. On all ranks."""
        if group.world == 1:
            return []
        keepers = np.array(owners.keepers, dtype=np.int16)
        return [_swapped(update, keepers[buckets(update.ids)], group.world) for update in updates]

    def apply(self, updates: Sequence[Update]) -> None:
        """Apply what `copied` returned."""
        if not updates:
            return
        for one, copy, update in zip(self._embeddings, self.copies, updates, strict=True):
            copy.update(update.ids, update.seen, update.gradients, one.lr)


def _swapped(update: Update, keeper: np.ndarray, world: int) -> Update:
    """Give each row's update to its keeper, and return what comes: each id once, as it has one
    owner."""
    order = np.argsort(keeper, kind="stable")
    order = order[np.count_nonzero(keeper == NOBODY) :]  # these come first
    sent = np.bincount(keeper[order], minlength=world).tolist()
    received = swap_counts(sent)
    ids, seen = (
        swap(torch.from_numpy(part[order]), sent, received).numpy()
        for part in (update.ids, update.seen)
    )
    gradients = update.gradients.index_select(0, torch.from_numpy(order))
    return Update(ids, seen, swap(gradients, sent, received))
