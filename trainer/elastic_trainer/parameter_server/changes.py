"""Changes: ids of some of a holder's buckets that were changed since they were last asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from elastic_trainer.embeddings.changed_ids import ChangedIds
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.table import Table
from elastic_trainer.parameter_server.holder import Buckets, Holder

FEW_ROWS = 2048
"""So many changed rows are sent in one go, while nothing else is done or their buckets frozen."""
ROUNDS = 20
"""How often changed rows are sent before that, however many are left."""

IdsByTable = Mapping[str, Ids]


class Changes:
    """Watches these buckets from now on, until `stop`."""

    def __init__(self, holder: Holder, of: Buckets) -> None:
        self._holder = holder
        self._wanted = np.zeros(BUCKETS, dtype=bool)
        self._wanted[of] = True
        self._changed: dict[str, ChangedIds] = {}
        for table in holder.tables.values():
            self._watch(table)
        holder.watchers.append(self._watch)

    def _watch(self, table: Table) -> None:
        self._changed[table.settings.name] = ChangedIds(table)

    def stop(self) -> None:
        self._holder.watchers.remove(self._watch)
        for one in self._changed.values():
            one.stop()

    def take(self) -> IdsByTable:
        """Return those since the last time, of tables that have any."""
        taken = {name: one.take() for name, one in self._changed.items()}
        found = {name: ids[self._wanted[buckets(ids)]] for name, ids in taken.items()}
        return {name: ids for name, ids in found.items() if len(ids)}


async def send_until_few(
    take: Callable[[], IdsByTable], send: Callable[[IdsByTable], Awaitable[None]]
) -> IdsByTable:
    """Send what was changed, and again what was changed meanwhile, until little is left; return
    that."""
    for _ in range(ROUNDS):
        ids = take()
        if sum(map(len, ids.values())) <= FEW_ROWS:
            return ids
        await send(ids)
    return take()
