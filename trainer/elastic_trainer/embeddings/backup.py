"""Backup: a second copy of each rank's rows in another's memory, so that a holder may be lost.

A rank's backup is the one with its place on the next node, or where there is one node, the next
rank. It applies the same updates to the same rows, so the two copies are equal bit for bit, and a
lost holder's rows go on from its backup's, in the step where all are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from elastic_trainer.embeddings.exchange import Update, swap, swap_counts
from elastic_trainer.embeddings.split_table import SplitTable
from elastic_trainer.embeddings.table import Entries, Table
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
        """Give this rank's rows to its backup, and take another's. On all ranks.

        Args:
            owners: by bucket.
            local_world: ranks of each node.
        """
        self.clear()
        self._group = group
        if group.world == 1:
            return
        distance = local_world if 0 < local_world < group.world else 1
        self._keeper = (group.rank + distance) % group.world
        source = (group.rank - distance) % group.world
        mine = [bucket for bucket, owner in enumerate(owners) if owner == group.rank]
        goes: list[list[int]] = [[] for _ in range(group.world)]
        goes[self._keeper] = mine
        for one, copy in zip(self._embeddings, self._copies, strict=True):
            copy.put(swap_entries(one.table, goes))
            copy.step = one.table.step
        self.held = {bucket for bucket, owner in enumerate(owners) if owner == source}

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

    def entries(self, number: int, wanted: Collection[int]) -> Entries:
        """Return the rows of these buckets of the table of this number."""
        return self._copies[number].entries(wanted)

    def _swapped(self, update: Update) -> Update:
        sent = [0] * self._group.world
        sent[self._keeper] = len(update.ids)
        received = swap_counts(sent)
        ids, seen = (
            swap(torch.from_numpy(part), sent, received).numpy()
            for part in (update.ids, update.seen)
        )
        return Update(ids, seen, swap(update.gradients, sent, received))


def swap_entries(table: Table, goes: Sequence[Collection[int]]) -> Entries:
    """Give each rank the rows of these buckets; return what this one gets. On all ranks."""
    parts = [table.entries(one) for one in goes]
    columns = [one.tensors() for one in parts]
    rows, candidates = [len(one.ids) for one in parts], [len(one.candidates) for one in parts]
    rows_received, candidates_received = swap_counts(rows), swap_counts(candidates)
    swapped = [
        swap(torch.cat([one[number] for one in columns]), sent, received)
        for number, (sent, received) in enumerate(
            [(rows, rows_received)] * 5 + [(candidates, candidates_received)] * 3
        )
    ]
    return Entries(*swapped)
