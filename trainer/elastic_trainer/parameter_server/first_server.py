"""FirstServer: answers what only the first of a job's servers knows, and has its director act."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import grpc

from elastic_trainer.parameter_server.backups import Backups
from elastic_trainer.parameter_server.director import TICK_SECONDS, Director
from elastic_trainer.parameter_server.epoch_file import EpochFile
from elastic_trainer.parameter_server.files import cut, read_saves
from elastic_trainer.parameter_server.holder import Holder
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.orders import Orders
from elastic_trainer.parameter_server.placement import Server
from elastic_trainer.parameter_server.reports import read_report
from elastic_trainer.parameter_server.service import checked, log
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.proto import parameter_server_pb2 as messages


class FirstServer:
    """Args:
    storage: a folder that outlives this server; empty: there is none.
    job: its name, in what is told of the servers.
    itself: returns what this server says of itself.

    Raises:
        OSError, ValueError: its storage can't be read.
    """

    def __init__(
        self,
        member: Member,
        backups: Backups,
        storage: str,
        job: str,
        itself: Callable[[], Server],
    ) -> None:
        self._member, self._backups = member, backups
        self._job, self._itself = job, itself
        file, orders = EpochFile(storage), Orders(member.stubs)
        if not file.outlives:
            log.warning("without --storage it begins with empty tables whenever it is restarted")
        self._director = Director(self._begin, orders.move, orders.adopt, file)

    def gazed(self) -> dict[str, Any]:
        """Return what all servers and workers say."""
        return self._director.gazed(self._job)

    async def FindOwners(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._report_itself()
        return self._director.owners()

    async def Observe(self, request: Any, context: Any) -> Any:  # noqa: N802
        take, now = self._director.observed.take, time.monotonic()
        await checked(context, lambda: take(request.worker, dict(request.values), now))
        return messages.ObserveReply(status=json.dumps(self.gazed()))

    async def Load(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            holder = Holder()
            if request.files:
                files = [(one.path, one.size, one.digest) for one in request.files]
                holder = read_saves(cut(files, request.counts or [len(files)]))
        except (OSError, ValueError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"cannot load: {error}")
            raise
        try:
            if not self._director.supersede():
                return messages.LoadReply(verdict=messages.LATER)
        except OSError as error:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"cannot load: {error}; {self._member.address} has to write its --storage first",
            )
            raise
        self._member.hold(Share(holder))
        self._begin(self._director.epoch)
        owners = self._director.owners()
        self._backups.copies.forget((), owners.superseded)
        self._report_itself()
        history = messages.History(epoch=owners.epoch, adopted=owners.adopted)
        return messages.LoadReply(verdict=messages.DONE, history=history)

    async def Report(self, request: Any, context: Any) -> Any:  # noqa: N802
        server = await checked(context, lambda: read_report(request))
        self._director.report(server, request.version)
        return self._director.owners(request.life)

    async def run(self) -> None:
        """Have done what is to be done next, again and again."""
        member = self._member
        while True:
            member.look_after_itself()
            await self._backups.heed(member.owners)
            self._report_itself()  # as it is when it may end
            self._director.tick()
            if member.leaving and self._director.may_end(member.life):
                member.ended.set()
            await asyncio.sleep(TICK_SECONDS)

    def _begin(self, epoch: str) -> None:
        share = self._member.share
        share.epoch = epoch
        share.holder.held[:] = True
        share.holder.turns[:] = time.time_ns()  # after those of an epoch before

    def _report_itself(self) -> None:
        self._director.report(self._itself(), 0)
        self._member.owners = self._director.owners(self._member.life)
        self._member.service.leased_until = float("inf")
