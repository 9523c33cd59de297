"""Giving: buckets of a share that are on their way to another server, and are served meanwhile."""

from __future__ import annotations

from elastic_trainer.parameter_server.changes import Changes, IdsByTable
from elastic_trainer.parameter_server.holder import Buckets
from elastic_trainer.parameter_server.hot_ids import HotIds
from elastic_trainer.parameter_server.parts import ids_in
from elastic_trainer.parameter_server.share import Share

HOT_STEPS, HOT_ROWS = 64, 2048
"""Hot rows: seen in so many of the last steps, most often of all; at most so many a move."""


class Giving:
    """Watches their rows' changes until `end`."""

    def __init__(self, share: Share, given: Buckets) -> None:
        self._share, self._holder, self._given = share, share.holder, given
        self._changes = Changes(self._holder, given)
        tables = self._holder.tables
        most = HOT_ROWS // max(1, len(tables))
        self._hot = {name: HotIds(table, HOT_STEPS, most) for name, table in tables.items()}

    def find_hot(self, part: Buckets) -> None:
        """Find hot rows in some of the buckets. They would change again before these are frozen:
        only `freeze` returns them."""
        for hot in self._hot.values():
            hot.look_into(part)

    def ids_in(self, part: Buckets) -> IdsByTable:
        """Return the ids of what is here of these buckets; not hot rows'."""
        return self._not_hot(ids_in(self._holder, part))

    def changed(self) -> IdsByTable:
        """Return the ids that were changed since this was last asked; not hot rows'."""
        return self._not_hot(self._changes.take())

    def freeze(self) -> IdsByTable:
        """Have requests of the buckets put off; return the hot rows' ids."""
        self._holder.frozen[self._given] = True
        return {name: hot.ids for name, hot in self._hot.items() if len(hot.ids)}

    def end(self, *, taker: str) -> None:
        """Hold the buckets no longer.

        Args:
            taker: the life that has taken them; empty: it hasn't, so they are held as before.
        """
        self._changes.stop()
        self._holder.frozen[self._given] = False
        if taker:
            self._share.gave(taker, self._given)

    def _not_hot(self, ids: IdsByTable) -> IdsByTable:
        hot = self._hot
        return {
            name: hot[name].left_out(some) if name in hot else some for name, some in ids.items()
        }
