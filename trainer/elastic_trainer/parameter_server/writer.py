"""Writer: writes a server's rows into files, as saves and as exports, when a worker asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.export import Changes, ExportLog, part
from elastic_trainer.parameter_server.files import Saved, write_file
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.service import adopted_in, checked
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.snapshot import (
    Snapshot,
    TableSnapshot,
    TornError,
    read_in_parts,
)
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages


class Writer:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._exports: dict[str, ExportLog] = {}
        """By folder."""

    async def Save(self, request: Any, context: Any) -> Any:  # noqa: N802
        share = self._member.share
        held = share.holder.held & ~share.holder.frozen
        if not held.any() or not self._member.may_serve:
            return messages.SaveReply()
        if not request.export:  # in which rows of several moments may be
            after = adopted_in(request.history)
            await checked(context, lambda: share.holder.refuse_adopted(np.flatnonzero(held), after))
        try:
            saved = await self.write(request, share, held)
        except TornError:
            return messages.SaveReply()  # who asked asks all servers again
        except OSError as error:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"cannot write {request.place}: {error.strerror}; it has to be a directory that "
                "all servers can write",
            )
            raise
        buckets = pack(np.flatnonzero(held))
        return messages.SaveReply(
            name=saved.name, size=saved.size, digest=saved.digest, buckets=buckets
        )

    async def write(self, request: Any, share: Share, held: NDArray[np.bool_]) -> Saved:
        """Write these buckets' rows as they are now, read in parts, between which requests are
        served.

        Raises:
            OSError: they can't be written.
            TornError: some of them went to another server meanwhile.
        """
        life, tables_here = self._member.life, share.holder.tables
        contents: Callable[[], dict[str, Any]]
        if request.export:
            log = self._exports.setdefault(request.export, ExportLog())
            found = log.find(request.number, tables_here, held, base=request.base)
            tables = {
                name: TableSnapshot(tables_here[name], whole, ids, weights_alone=True)
                for name, (whole, ids) in found.items()
            }
            read, contents = list(tables.values()), partial(_exported, tables, found)
        else:
            buckets = np.flatnonzero(held)
            since = share.saves.begin(request.save, request.after, buckets)
            snapshot = Snapshot(tables_here, buckets, since)
            read, contents = snapshot.tables, snapshot.contents
        with closing(read_in_parts(read)) as parts:
            for _ in parts:
                await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: write_file(request.place, life, contents()))


def _exported(tables: Mapping[str, TableSnapshot], found: Changes) -> dict[str, Any]:
    parts = {}
    for name, (whole, ids) in found.items():
        all_of, some = (tables[name].rows_of(whole=one)[:2] for one in (True, False))
        parts[name] = part(tables[name].table.settings, whole, ids, all_of, some)
    return parts
