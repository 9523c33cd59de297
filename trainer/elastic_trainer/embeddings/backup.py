"""Backup: a second copy of each rank's rows in another's memory, so that a holder may be lost.

A rank's backup is the one with its place on the next node, or where there is one node, the next
rank. It applies the same updates to the same rows, so the two copies are equal bit for bit, and a
lost holder's rows go on from its backup's, in the step where all are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from elastic_trainer.embeddings.bucket_exchange import swap_buckets
from elastic_trainer.embeddings.exchange import Update, swap, swap_counts
from elastic_trainer.embeddings.split_table import SplitTable
from elastic_trainer.embeddings.table import Table
from elastic_trainer.ranks.process_group import ProcessGroup


class Backup:
    """The rows this rank keeps for another, and the rank to which it gives its own.

    Args:
        embeddings: whose rows are kept twice.
    """

    def __init__(self, embeddings: Sequence[SplitTable]) -> None:
        self._embeddings = embeddings
        self._copies = [Table(one.table.settings) for one in embeddings]
        self._group = ProcessGroup()
        self._keeper = 0
        self.held: set[int] = set()
        """Buckets of which a copy is here, as their holder has them."""

    def __len__(self) -> int:
        return sum(len(copy) for copy in self._copies)

    def clear(self) -> None:
        for copy in self._copies:
            copy.clear()
        self.held = set()

    def renew(self, group: ProcessGroup, owners: Sequence[int], local_world: int) -> None:
        """Give this rank's rows to its backup, and take another's, as far as they aren't there
        since before: copies are as new as their holders' rows. On all ranks.

        Args:
            owners: by bucket.
            local_world: ranks of each node.
        """
        self._group = group
        if group.world == 1:
            self.clear()
            return
        distance = local_world if 0 < local_world < group.world else 1
        self._keeper = (group.rank + distance) % group.world
        source = (group.rank - distance) % group.world
        mine, others = (
            {bucket for bucket, owner in enumerate(owners) if owner == rank}
            for rank in (group.rank, source)
        )
        for copy in self._copies:
            copy.drop(self.held - others)
        self.held &= others
        there = group.gather(self.held)[self._keeper]
        goes: list[list[int]] = [[] for _ in range(group.world)]
        comes: list[list[int]] = [[] for _ in range(group.world)]
        goes[self._keeper] = sorted(mine - there)
        comes[source] = sorted(others - self.held)
        tables = [one.table for one in self._embeddings]
        swap_buckets(list(zip(tables, self._copies, strict=True)), goes, comes)
        for one, copy in zip(self._embeddings, self._copies, strict=True):
            copy.step = one.table.step
        self.held = others

    def copied(self, updates: Sequence[Update]) -> list[Update]:
        """Give this rank's updates to its backup; return the other's. On all ranks."""
        if self._group.world == 1:
            return []
        return [self._swapped(update) for update in updates]

    def apply(self, updates: Sequence[Update]) -> None:
        """Apply what `copied` returned."""
        if not updates:
            return
        for one, copy, update in zip(self._embeddings, self._copies, updates, strict=True):
            copy.update(update.ids, update.seen, update.gradients, one.lr)

    def restore(self, wanted: Collection[int]) -> None:
        """Have the tables hold these buckets as they are here."""
        for one, copy in zip(self._embeddings, self._copies, strict=True):
            one.table.copy(copy, wanted)

    def _swapped(self, update: Update) -> Update:
        sent = [0] * self._group.world
        sent[self._keeper] = len(update.ids)
        received = swap_counts(sent)
        ids, seen = (
            swap(torch.from_numpy(part), sent, received).numpy()
            for part in (update.ids, update.seen)
        )
        return Update(ids, seen, swap(update.gradients, sent, received))
