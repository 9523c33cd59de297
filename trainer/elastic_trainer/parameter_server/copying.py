"""Copying: a server sends what changed of its rows to the one that keeps a copy of them.

First all rows in parts, while they are served, then every few seconds those that changed. What ends
a moment is read with no request between: rows, and which pushes they took. A bucket that is given
to another server is taken out of the copy before that can take it, so a copy never has what its
server gave away.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.parameter_server.holder import EVERY_BUCKET, Buckets, Holder
from elastic_trainer.parameter_server.moving import ANSWER_SECONDS, FEW_ROWS, PART_ROWS, ROUNDS
from elastic_trainer.parameter_server.wire import pack, pack_entries, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

log = logging.getLogger("elastic_trainer.parameter_server")

_NONE: Buckets = EVERY_BUCKET[:0]


@dataclass(frozen=True)
class Served:
    """What a server serves just now, and who is to keep a copy of it."""

    holder: Holder
    epoch: str
    keeper: str
    """Address; empty: nobody."""
    keeper_life: str


class _NotKeptError(Exception):
    """The keeper doesn't know the copy."""


class Copier:
    """Keeps a copy of a server's rows on another one.

    Args:
        life: of this server.
        served: returns what it serves.
        stub: returns the stub of an address.
    """

    def __init__(self, life: str, served: Callable[[], Served], stub: Callable[[str], Any]) -> None:
        self._life, self._served, self._stub = life, served, stub
        self._of: Served | None = None
        self._name = ""
        self._covered: Buckets = _NONE
        """Buckets of the copy's last moment."""
        self._going: Buckets = _NONE
        """Buckets that are about to be given away, which the copy must not have."""
        self._lock = asyncio.Lock()

    async def run(self, seconds: float) -> None:
        """Copy what changed every so often."""
        while True:
            began = time.monotonic()
            await self.copy()
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    async def copy(self) -> None:
        """Bring the copy to what is here now. What fails is begun anew the next time."""
        async with self._lock:
            now = self._served()
            if not now.keeper or not now.holder.held.any():
                self._end()
                return
            try:
                if now != self._of:
                    await self._begin(now)
                await self._to_this_moment(now)
            except (grpc.RpcError, _NotKeptError) as error:
                log.warning("no copy of its rows at %s yet: %r", now.keeper, error)
                self._end()

    async def take_out(self, given: Buckets) -> None:
        """Have the copy lose these buckets, until `put_back`.

        Raises:
            grpc.RpcError: it may have them still.
        """
        async with self._lock:
            self._going = given
            if self._of is None:
                return
            self._covered = np.setdiff1d(self._covered, given)
            try:
                await self._send(self._of, messages.KeepRequest(given=pack(given)))
            except _NotKeptError:
                self._end()

    def put_back(self) -> None:
        """Copy again what is held, whatever was to be given away."""
        self._going = _NONE

    async def _begin(self, now: Served) -> None:
        old = self._of
        self._end()
        if old is not None and old.keeper_life != now.keeper_life:
            # Else it might be taken for the newest one, some day.
            try:
                await self._stub(old.keeper).Keep(
                    messages.KeepRequest(
                        life=old.keeper_life, source=self._life, given=pack(EVERY_BUCKET)
                    ),
                    timeout=1.0,
                )
            except grpc.RpcError:
                log.info("%s may still have an older copy", old.keeper)
        self._of, self._name = now, uuid.uuid4().hex[:16]
        now.holder.watch(self._name, EVERY_BUCKET)
        await self._send(now, messages.KeepRequest(first=True))

    def _end(self) -> None:
        if self._of is not None:
            self._of.holder.unwatch(self._name)
        self._of, self._name, self._covered = None, "", _NONE

    def _held(self) -> Buckets:
        held = _NONE if self._of is None else np.flatnonzero(self._of.holder.held)
        return np.setdiff1d(held, self._going)

    async def _to_this_moment(self, now: Served) -> None:
        holder = now.holder
        lacking = np.setdiff1d(self._held(), self._covered)
        ids = _ids_in(holder, lacking)
        for _ in range(ROUNDS):
            if sum(map(len, ids.values())) <= FEW_ROWS:
                break
            for rows in _parts(holder, ids):
                await self._send(now, messages.KeepRequest(rows=[rows]))
            ids = holder.changed(self._name)
        # From here to `end` no request is served, so that all of it is of one moment.
        held = self._held()
        came = np.setdiff1d(held, np.union1d(lacking, self._covered))
        ids = _united(ids, holder.changed(self._name), _ids_in(holder, came))
        left = list(_parts(holder, ids))
        end = messages.KeepRequest(
            last=True,
            buckets=pack(held),
            applied=[
                messages.Applied(worker=worker, sequences=pack(sequences))
                for worker, sequences in holder.applied_in(held).items()
            ],
            steps=[
                messages.Step(table=name, step=table.step) for name, table in holder.tables.items()
            ],
        )
        for rows in left:
            await self._send(now, messages.KeepRequest(rows=[rows]))
        await self._send(now, end)
        self._covered = held

    async def _send(self, to: Served, request: messages.KeepRequest) -> None:
        request.life, request.source = to.keeper_life, self._life
        request.copy, request.epoch = self._name, to.epoch
        if not (await self._stub(to.keeper).Keep(request, timeout=ANSWER_SECONDS)).kept:
            raise _NotKeptError(f"{to.keeper} doesn't know the copy")


def _ids_in(holder: Holder, wanted: Buckets) -> dict[str, Ids]:
    if not len(wanted):
        return {}
    return {name: table.ids_in(wanted) for name, table in holder.tables.items()}


def _united(*parts: dict[str, Ids]) -> dict[str, Ids]:
    names = {name for part in parts for name in part}
    return {
        name: np.unique(np.concatenate([part[name] for part in parts if name in part]))
        for name in sorted(names)
    }


def _parts(holder: Holder, ids: dict[str, Ids]) -> Iterator[messages.Rows]:
    """Yield these rows, each as it is when it is asked for."""
    for name, wanted in ids.items():
        table = holder.tables[name]
        text = write_settings(table.settings)
        for begin in range(0, len(wanted), PART_ROWS):
            part = wanted[begin : begin + PART_ROWS]
            entries = pack_entries(table.entries_of(part))
            yield messages.Rows(table=text, ids=pack(part), entries=entries)
