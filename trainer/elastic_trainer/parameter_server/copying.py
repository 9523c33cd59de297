"""Copying: a server sends what changed of its rows to the one that keeps a copy of them.

First all rows in parts, while they are served, then every few seconds those that changed. What ends
a moment is read with no request between: rows, and which pushes they took. Buckets that are given
to another server are in no later moment; the copy has them as they were, until nobody needs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.parameter_server import parts
from elastic_trainer.parameter_server.changes import Changes, IdsByTable, send_until_few
from elastic_trainer.parameter_server.holder import EVERY_BUCKET, NO_TURN, Holder
from elastic_trainer.parameter_server.moving import ANSWER_SECONDS
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages

log = logging.getLogger("elastic_trainer.parameter_server")

UNCOPIED_SECONDS = 60.0
"""A server that gave buckets keeps their rows so long for one that has no copy of them yet."""


@dataclass(frozen=True)
class Served:
    """Rows and epoch that a server serves just now, and who is to keep a copy."""

    holder: Holder
    epoch: str
    keeper: str
    """Address; empty: nobody."""
    keeper_life: str
    is_told: bool = True
    """False before it has heard who is to keep a copy, or nobody."""


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
        self._changes: Changes | None = None
        """Since what was sent last."""
        self._covered = np.full(BUCKETS, NO_TURN)
        """By bucket, the turn by which it had come when the copy's last moment had it."""
        self._used: dict[str, str] = {}
        """Keepers that may have a copy: addresses by life."""
        self._soon = asyncio.Event()

    async def run(self, seconds: float) -> None:
        """Copy what changed every so often, and when buckets have come."""
        while True:
            began = time.monotonic()
            self._soon.clear()
            await self.copy()
            with contextlib.suppress(TimeoutError):
                rest = max(0.0, began + seconds - time.monotonic())
                await asyncio.wait_for(self._soon.wait(), rest)

    def hurry(self) -> None:
        """Copy at once: buckets have come."""
        self._soon.set()

    def uncopied(self) -> NDArray[np.bool_]:
        """Tell which of the buckets that are held here aren't in the copy yet: all, before it is
        known who is to keep one; none, if nobody is."""
        now = self._served()
        if not now.keeper and now.is_told:
            return np.zeros(BUCKETS, dtype=bool)
        if now != self._of:
            return now.holder.held.copy()
        found: NDArray[np.bool_] = now.holder.held & (self._covered != now.holder.turns)
        return found

    async def copy(self) -> None:
        """Bring the copy to what is here now. What fails is begun anew the next time."""
        now = self._served()
        if not now.keeper or not now.holder.held.any():
            self._end()
            return
        try:
            changes = self._changes
            if changes is None or now != self._of:
                changes = await self._begin(now)
            await self._to_this_moment(now, changes)
        except (grpc.RpcError, _NotKeptError) as error:
            log.warning("no copy of its rows at %s yet: %r", now.keeper, error)
            self._end()
        else:
            await self._end_older(now)

    async def _begin(self, now: Served) -> Changes:
        self._end()
        self._of, self._name = now, uuid.uuid4().hex[:16]
        changes = self._changes = Changes(now.holder, EVERY_BUCKET)
        self._used[now.keeper_life] = now.keeper
        await self._send(now, messages.KeepRequest(first=True))
        return changes

    async def _end_older(self, now: Served) -> None:
        """Have copies at earlier keepers ended, which might be taken for the newest one, some
        day."""
        for life, address in list(self._used.items()):
            if life == now.keeper_life:
                continue
            request = messages.KeepRequest(life=life, source=self._life, ends=True)
            try:
                await self._stub(address).Keep(request, timeout=1.0)
                del self._used[life]
            except grpc.RpcError:
                log.info("%s may still have an older copy", address)

    def _end(self) -> None:
        if self._changes is not None:
            self._changes.stop()
        self._of, self._name, self._changes = None, "", None
        self._covered = np.full(BUCKETS, NO_TURN)

    async def _to_this_moment(self, now: Served, changes: Changes) -> None:
        holder = now.holder

        async def send_rows(ids: IdsByTable) -> None:
            for rows in parts.rows_of(holder, ids):
                await self._send(now, messages.KeepRequest(rows=[messages.Rows(**rows)]))

        lacking = holder.held & (self._covered != holder.turns)
        begun = np.where(lacking, holder.turns, self._covered)
        for some in parts.some_at_a_time(holder, np.flatnonzero(lacking)):
            await send_rows(parts.ids_in(holder, some))
        ids = await send_until_few(changes.take, send_rows)
        # From here to `end` no request is served, so that all of it is of one moment. A bucket that
        # has come meanwhile, maybe not for the first time, is in the next one.
        has = np.flatnonzero(holder.held & (holder.turns == begun))
        turns = holder.turns[has]
        left = [messages.Rows(**rows) for rows in parts.rows_of(holder, ids)]
        end = messages.KeepRequest(last=True, turns=pack(turns), **parts.pushes_in(holder, has))
        for one in left:
            await self._send(now, messages.KeepRequest(rows=[one]))
        await self._send(now, end)
        self._covered = np.full(BUCKETS, NO_TURN)
        self._covered[has] = turns

    async def _send(self, to: Served, request: messages.KeepRequest) -> None:
        request.life, request.source = to.keeper_life, self._life
        request.copy, request.epoch = self._name, to.epoch
        if not (await self._stub(to.keeper).Keep(request, timeout=ANSWER_SECONDS)).kept:
            raise _NotKeptError(f"{to.keeper} doesn't know the copy")
