"""Writer: writes a server's rows into files, as saves and as exports."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.export import ExportLog
from elastic_trainer.parameter_server.files import Saved, copy_tables, write_file
from elastic_trainer.parameter_server.holder import Holder


class Writer:
    """Args:
    life: of the server, after which its files are named.
    """

    def __init__(self, life: str) -> None:
        self._life = life
        self._exports: dict[str, ExportLog] = {}
        """By folder."""

    async def write(self, request: Any, holder: Holder, held: NDArray[np.bool_]) -> Saved:
        """Write these buckets' rows as they are now, with no request between. Raises OSError."""
        if request.export:
            log = self._exports.setdefault(request.export, ExportLog())
            contents = log.take(request.number, holder.tables, held, base=request.base)
        else:
            buckets = np.flatnonzero(held)
            since = holder.saved(request.save, request.after, buckets)
            contents = copy_tables(holder.tables, buckets, since)
        return await asyncio.to_thread(write_file, request.place, self._life, contents)
