"""TableMeter: what the tables held here are asked for, as it is told each few seconds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.id_samples import IdSamples
from elastic_trainer.embeddings.table import Table
from elastic_trainer.metrics.table_load import HOT_IDS, TableLoad

WINDOW_SECONDS = 10.0
"""Rates are of so long."""
SAMPLED = 8
"""One of so many steps is looked at for its ids."""


class TableMeter:
    """Args:
    tables: of a process, with different names.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._samples = [IdSamples() for _ in tables]
        self._steps = 0
        self._since: float | None = None
        self._updated = [0] * len(tables)

    def applied(self, updates: Sequence[Update]) -> None:
        """Take in a step's updates, one for each table."""
        self._steps += 1
        if self._steps % SAMPLED:
            return
        for samples, update in zip(self._samples, updates, strict=True):
            samples.add(update.ids, update.seen)

    def loads(self, now: float) -> dict[str, TableLoad] | None:
        """Return the tables' loads by name, at first and once a window; None in between.

        Args:
            now: seconds of a clock that goes on.
        """
        first = self._since is None
        seconds = WINDOW_SECONDS if self._since is None else now - self._since
        if seconds < WINDOW_SECONDS:
            return None
        self._since = now
        found = {}
        for number, table in enumerate(self._tables):
            updated = table.counters.updated - self._updated[number]
            found[table.settings.name] = measure(
                table, self._samples[number], 0.0 if first else updated / seconds
            )
            self._updated[number] = table.counters.updated
            self._samples[number].halve()
        return found


def measure(table: Table, samples: IdSamples, updated_per_second: float) -> TableLoad:
    """Return the load of what is held here of a table.

    Args:
        samples: of the ids that it was updated for.
    """
    counters = table.counters
    ids, shares = samples.hot(HOT_IDS)
    return TableLoad(
        rows=len(table),
        bytes=table.nbytes,
        admitted=counters.admitted,
        evicted=counters.evicted,
        updated=counters.updated,
        updated_per_second=updated_per_second,
        hot_ids=ids,
        hot_share=shares,
    )
