"""Moves: buckets that go from this server to another, as the first one orders, or come here."""

from __future__ import annotations

import asyncio
from typing import Any

from elastic_trainer.parameter_server.backups import Backups
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.moving import Order, give
from elastic_trainer.parameter_server.service import checked
from elastic_trainer.parameter_server.wire import unpack
from elastic_trainer.proto import parameter_server_pb2 as messages


class Moves:
    def __init__(self, member: Member, backups: Backups) -> None:
        self._member, self._backups = member, backups
        self._taker = ""
        self._move: asyncio.Task[bool] | None = None

    @property
    def giving(self) -> bool:
        return self._move is not None and not self._move.done()

    @property
    def giving_to(self) -> str:
        """Return the life that is to take what is given; empty: nothing is."""
        return self._taker if self.giving else ""

    def begin(self, order: Order) -> asyncio.Task[bool]:
        """Begin to give what was ordered; the task tells whether it was taken."""
        self._taker = order.taker
        self._move = asyncio.get_running_loop().create_task(give(self._member.share, order))
        self._move.add_done_callback(lambda _: self._member.news.set())
        return self._move

    async def Give(self, request: Any, context: Any) -> Any:  # noqa: N802
        member, given = self._member, unpack(request.buckets)
        held = member.share.holder.held
        if request.epoch != member.share.epoch or self.giving or not held[given].all():
            return messages.GiveReply(given=False)
        order = Order(
            given,
            member.life,
            request.life,
            member.stubs.of(request.address),
            request.epoch,
            request.turn,
            lambda: request.life in member.owners.gone,
        )
        # Whoever asked may be gone meanwhile; what began goes on.
        return messages.GiveReply(given=await asyncio.shield(self.begin(order)))

    async def Receive(self, request: Any, context: Any) -> Any:  # noqa: N802
        member, share = self._member, self._member.share
        if request.life != member.life or request.source in member.owners.gone:
            return messages.ReceiveReply(accepted=False)

        def received() -> bool:
            if not request.table:
                return share.expect(request.move, unpack(request.buckets), request.source)
            return share.receive(request)

        return messages.ReceiveReply(accepted=await checked(context, received))

    async def Take(self, request: Any, context: Any) -> Any:  # noqa: N802
        member, share = self._member, self._member.share
        if not member.is_meant(request.life, request.epoch):
            return messages.TakeReply(taken=False, life=member.life)
        if member.ended.is_set():  # what it took before it still says
            share.expect_nothing_from(share.expects_from)
        taken = share.take(request)
        if taken:
            share.epoch = request.epoch
            self._backups.came(unpack(request.buckets))
        return messages.TakeReply(taken=taken, life=member.life)
