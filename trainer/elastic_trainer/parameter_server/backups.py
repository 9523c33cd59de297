"""Backups: what a server keeps of others' rows, and the copy of its own that another one keeps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.parameter_server.copies import Copies, Copy, Moment, Rows
from elastic_trainer.parameter_server.copying import UNCOPIED_SECONDS, Copier, Served
from elastic_trainer.parameter_server.holder import EVERY_BUCKET, Buckets
from elastic_trainer.parameter_server.placement import Kept
from elastic_trainer.parameter_server.reports import read_copies
from elastic_trainer.parameter_server.wire import unpack

log = logging.getLogger("elastic_trainer.parameter_server")

FORGOTTEN_BUCKETS = 8
"""Forgotten at a time, between which requests are served."""


class Backups:
    """All on the server's event loop.

    Args:
        life: of this server.
        make_copy: makes a copy of another's rows, of a name and an epoch.
        copies_own: whether another one is to keep a copy of this server's rows.
        served: returns what this one serves.
        stub: returns the stub of an address.
    """

    def __init__(
        self,
        life: str,
        make_copy: Callable[[str, str], Copy],
        copies_own: bool,
        served: Callable[[], Served],
        stub: Callable[[str], Any],
    ) -> None:
        self._make_copy, self._served = make_copy, served
        self.copies = Copies(make_copy)
        self.copier = Copier(life, served, stub) if copies_own else None
        self._took = np.full(BUCKETS, -np.inf)
        """By bucket, when it came."""

    def came(self, buckets: Buckets) -> None:
        """Have buckets copied soon that are held here since now."""
        self._took[buckets] = time.monotonic()
        if self.copier is not None:
            self.copier.hurry()

    def begin_anew(self) -> None:
        """Keep nothing of others any more."""
        self.copies.forget(list(self.copies.sources), ())
        self.copies = Copies(self._make_copy)

    def keep(self, request: Any) -> bool:
        """Keep a part of another's copy. False where it can't be.

        Raises:
            ValueError, TypeError: it is none.
        """
        try:
            if request.first:
                self.copies.begin(request.source, request.copy, request.epoch)
            last = None
            if request.last:
                last = Moment(
                    unpack(request.buckets),
                    {one.worker: unpack(one.sequences) for one in request.applied},
                    {one.table: one.step for one in request.steps},
                    unpack(request.turns),
                )
            rows = [Rows(one.table, unpack(one.ids), list(one.entries)) for one in request.rows]
            return self.copies.keep(request.source, request.copy, rows, last)
        except OSError as error:
            log.warning("cannot keep a copy of %s's rows: %s", request.source, error)
            return False

    def adopt(self, request: Any) -> bool:
        """Hold buckets as they are kept here. False where they can't be held."""
        source, buckets = request.source, unpack(request.buckets)
        holder = self._served().holder
        try:
            if request.given:
                adopted = holder.hold_again(source, buckets, request.turn)
            else:
                adopted = self.copies.adopt(source, buckets, holder, request.epoch, request.turn)
        except OSError as error:
            log.error("cannot read the copy of %s's rows: %s", source, error)
            self.copies.forget((source,), ())
            return False
        if adopted:
            self.came(buckets)
        return adopted

    async def heed(self, owners: Any) -> None:
        """Keep no longer what nobody needs, some of it at a time, and take nothing of the gone."""
        holder = self._served().holder
        holder.expect_nothing_from(owners.gone)
        needless = read_copies(owners.outdated)
        if self.copier is None:
            needless += self._given()
        for one in needless:
            for begin in range(0, len(one.buckets), FORGOTTEN_BUCKETS):
                part = slice(begin, begin + FORGOTTEN_BUCKETS)
                if one.given:
                    holder.forget(one.life, one.buckets[part], one.turns[part])
                else:
                    self.copies.drop(one.life, one.buckets[part], one.turns[part])
                await asyncio.sleep(0)

    def kept(self) -> list[Kept]:
        """Return what others may go on from; without copies, nobody goes on from older rows."""
        return self.copies.kept() + ([] if self.copier is None else self._given())

    def uncopied(self) -> Buckets:
        """Return the buckets that came lately, and of which there is no copy yet."""
        if self.copier is None:
            return EVERY_BUCKET[:0]
        lately = time.monotonic() - self._took < UNCOPIED_SECONDS
        found: Buckets = np.flatnonzero(lately & self.copier.uncopied())
        return found

    def _given(self) -> list[Kept]:
        holder = self._served().holder
        given, turns = holder.given(), holder.turns
        return [Kept(life, of, turns[of], given=True) for life, of in given.items()]
