"""Backups: what a server keeps of others' rows, and the copy of its own that another one keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.parameter_server.copies import Copies, Copy
from elastic_trainer.parameter_server.copying import UNCOPIED_SECONDS, Copier, Served
from elastic_trainer.parameter_server.holder import EVERY_BUCKET, Buckets
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.placement import Kept
from elastic_trainer.parameter_server.reports import read_copies
from elastic_trainer.parameter_server.service import checked, log
from elastic_trainer.parameter_server.wire import unpack
from elastic_trainer.proto import parameter_server_pb2 as messages

FORGOTTEN_BUCKETS = 8
"""Forgotten at a time, between which requests are served."""


class Backups:
    """Args:
    make_copy: makes a copy of another's rows, of a name and an epoch.
    copies_own: whether another one is to keep a copy of this server's rows.
    """

    def __init__(
        self, member: Member, make_copy: Callable[[str, str], Copy], *, copies_own: bool
    ) -> None:
        self._member = member
        self.copies = Copies(make_copy)
        self.copier = Copier(member.life, self.served, member.stubs.of) if copies_own else None
        self._took = np.full(BUCKETS, -np.inf)
        """By bucket, when it came."""

    def served(self) -> Served:
        share, told = self._member.share, self._member.owners
        is_told = told != messages.Owners()
        return Served(share.holder, share.epoch, told.keeper, told.keeper_life, is_told)

    def came(self, buckets: Buckets) -> None:
        """Have it told, and copied soon, that buckets are held here since now."""
        self._took[buckets] = time.monotonic()
        self._member.news.set()
        if self.copier is not None:
            self.copier.hurry()

    async def Keep(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.life == self._member.life and request.ends:
            self.copies.forget((request.source,), ())
            return messages.KeepReply(kept=True)
        if not self._member.is_meant(request.life, request.epoch):
            return messages.KeepReply(kept=False)

        def kept() -> bool:
            try:
                return self.copies.keep(request)
            except OSError as error:
                log.warning("cannot keep a copy of %s's rows: %s", request.source, error)
                return False

        return messages.KeepReply(kept=await checked(context, kept))

    async def Adopt(self, request: Any, context: Any) -> Any:  # noqa: N802
        member = self._member
        # An order that comes late may have been given to another one since.
        if not member.may_serve or not member.is_meant(request.life, request.epoch):
            return messages.AdoptReply(adopted=False)
        source, buckets, share = request.source, unpack(request.buckets), member.share
        turn, number = request.turn, request.number
        try:
            if request.given:
                adopted = share.hold_again(source, buckets, turn, number)
            else:
                adopted = self.copies.adopt(source, buckets, share, request.epoch, turn, number)
        except OSError as error:
            log.error("cannot read the copy of %s's rows: %s", source, error)
            self.copies.forget((source,), ())
            adopted = False
        if adopted:
            share.epoch = request.epoch
            self.came(buckets)
        return messages.AdoptReply(adopted=adopted)

    async def heed(self, owners: Any) -> None:
        """Keep no longer what nobody needs, some of it at a time, and take nothing of the gone."""
        share = self._member.share
        share.expect_nothing_from(owners.gone)
        needless = read_copies(owners.outdated)
        if self.copier is None:
            needless += self._given()
        for one in needless:
            for begin in range(0, len(one.buckets), FORGOTTEN_BUCKETS):
                part = slice(begin, begin + FORGOTTEN_BUCKETS)
                forget = share.forget if one.given else self.copies.drop
                forget(one.life, one.buckets[part], one.turns[part])
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
        share = self._member.share
        given, turns = share.given(), share.holder.turns
        return [Kept(life, of, turns[of], given=True) for life, of in given.items()]
