"""Writer: writes a server's rows into files, as saves and as exports."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.export import ExportLog
from elastic_trainer.parameter_server.files import Saved, write_file
from elastic_trainer.parameter_server.holder import Holder
from elastic_trainer.parameter_server.snapshot import Snapshot


class Writer:
    """Args:
    life: of the server, after which its files are named.
    """

    def __init__(self, life: str) -> None:
        self._life = life
        self._exports: dict[str, ExportLog] = {}
        """By folder."""

    async def write(self, request: Any, holder: Holder, held: NDArray[np.bool_]) -> Saved:
        """Write these buckets' rows as they are now; a save reads them in parts, between which
        requests are served.

        Raises:
            OSError: they can't be written.
            TornError: some of them went to another server meanwhile.
        """
        if request.export:
            log = self._exports.setdefault(request.export, ExportLog())
            contents = log.take(request.number, holder.tables, held, base=request.base)
            return await asyncio.to_thread(write_file, request.place, self._life, contents)
        buckets = np.flatnonzero(held)
        since = holder.saved(request.save, request.after, buckets)
        snapshot = Snapshot(holder.tables, buckets, since)
        try:
            for _ in snapshot.read():
                await asyncio.sleep(0)
        finally:
            snapshot.stop()
        return await asyncio.to_thread(
            lambda: write_file(request.place, self._life, snapshot.contents())
        )
