"""Writer: writes a server's rows into files, as saves and as exports."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.export import Changes, ExportLog, part
from elastic_trainer.parameter_server.files import Saved, write_file
from elastic_trainer.parameter_server.holder import Holder
from elastic_trainer.parameter_server.snapshot import Snapshot, TableSnapshot


class Writer:
    """Args:
    life: of the server, after which its files are named.
    """

    def __init__(self, life: str) -> None:
        self._life = life
        self._exports: dict[str, ExportLog] = {}
        """By folder."""

    async def write(self, request: Any, holder: Holder, held: NDArray[np.bool_]) -> Saved:
        """Write these buckets' rows as they are now, read in parts, between which requests are
        served.

        Raises:
            OSError: they can't be written.
            TornError: some of them went to another server meanwhile.
        """
        if request.export:
            log = self._exports.setdefault(request.export, ExportLog())
            found = log.find(request.number, holder.tables, held, base=request.base)
            tables = {
                name: TableSnapshot(holder.tables[name], whole, ids, weights_alone=True)
                for name, (whole, ids) in found.items()
            }
            await _read(tables.values())
            return await asyncio.to_thread(
                lambda: write_file(request.place, self._life, _exported(tables, found))
            )
        buckets = np.flatnonzero(held)
        since = holder.saved(request.save, request.after, buckets)
        snapshot = Snapshot(holder.tables, buckets, since)
        await _read(snapshot.tables)
        return await asyncio.to_thread(
            lambda: write_file(request.place, self._life, snapshot.contents())
        )


async def _read(tables: Collection[TableSnapshot]) -> None:
    """Read all, a part between two requests."""
    try:
        for one in tables:
            while one.left:
                one.read_on()
                await asyncio.sleep(0)
    finally:
        for one in tables:
            one.stop()


def _exported(tables: Mapping[str, TableSnapshot], found: Changes) -> dict[str, Any]:
    parts = {}
    for name, (whole, ids) in found.items():
        all_of, some = (tables[name].rows_of(whole=one)[:2] for one in (True, False))
        parts[name] = part(tables[name].table.settings, whole, ids, all_of, some)
    return parts
