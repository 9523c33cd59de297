"""Parts: rows on their way from one server to another, and which pushes they took, as messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.parameter_server.changes import IdsByTable
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.wire import pack, pack_entries, unpack, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

PART_ROWS = 4096
"""Rows of a message, between which requests are served; more, where a bucket has more."""
LARGE_ROWS = 8 * PART_ROWS
"""The most rows of a message."""
ROWS_TOGETHER = 1 << 16
"""So many rows are looked up at a time, between which requests are served."""


def some_at_a_time(holder: Holder, of: Buckets) -> list[Buckets]:
    """Cut buckets into parts that are small enough to look at all their rows at once."""
    rows = np.zeros(BUCKETS, dtype=np.int64)
    for table in holder.tables.values():
        rows += table.counts
    part = np.cumsum(rows[of]) // ROWS_TOGETHER
    return np.split(of, np.flatnonzero(np.diff(part)) + 1)


def ids_in(holder: Holder, part: Buckets) -> IdsByTable:
    """Return the ids of what is here of these buckets."""
    return {name: table.ids_in(part.tolist()) for name, table in holder.tables.items()}


def rows_of(holder: Holder, ids: IdsByTable) -> Iterator[dict[str, Any]]:
    """Yield these rows as fields of messages, each as it is when it is asked for."""
    for name, wanted in ids.items():
        table = holder.tables[name]
        text = write_settings(table.settings)
        for part in _cut(wanted):
            entries = pack_entries(table.entries_of(part))
            yield {"table": text, "ids": pack(part), "entries": entries}


def _cut(ids: Ids) -> list[Ids]:
    """Cut ids where a bucket ends, so that its rows come together and have room at once; large
    buckets elsewhere, too. Return one part at least: a table without rows has steps."""
    ends = np.append(np.flatnonzero(np.diff(buckets(ids))) + 1, len(ids))
    parts: list[Ids] = []
    begin = 0
    while not parts or begin < len(ids):
        end = int(ends[np.searchsorted(ends, min(begin + PART_ROWS, len(ids)))])
        if end > begin + LARGE_ROWS:
            end = begin + LARGE_ROWS
        parts.append(ids[begin:end])
        begin = end
    return parts


def pushes_in(holder: Holder, given: Buckets) -> dict[str, Any]:
    """Return which pushes these buckets took, as fields of a message."""
    return {
        "buckets": pack(given),
        "applied": [
            messages.Applied(worker=worker, sequences=pack(sequences))
            for worker, sequences in holder.applied_in(given).items()
        ],
        "steps": [
            messages.Step(table=name, step=table.step) for name, table in holder.tables.items()
        ],
    }


def hold_as_told(
    holder: Holder,
    told: Any,
    turns: NDArray[np.int64] | int,
    adopted: NDArray[np.int64] | int = 0,
) -> None:
    """Hold the buckets of a message, whose rows are here, with the pushes that it says."""
    applied = {one.worker: unpack(one.sequences) for one in told.applied}
    steps = {one.table: one.step for one in told.steps}
    holder.hold(unpack(told.buckets), applied, steps, turns, adopted)
