"""Follower: a server's word to the first one, and what follows from the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc

from elastic_trainer.parameter_server.backups import Backups
from elastic_trainer.parameter_server.holder import Holder
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.placement import LEASE_SECONDS, Server
from elastic_trainer.parameter_server.reports import write_report
from elastic_trainer.parameter_server.service import log
from elastic_trainer.parameter_server.share import Share

REPORT_SECONDS = 0.2
LOAD_SECONDS = 2.0
"""How often the first server is told of another one's load."""


class EpochError(Exception):
    """The first server serves other tables than this one holds."""


class Follower:
    """Args:
    first: the first server's address.
    itself: returns what this server says of itself.
    """

    def __init__(
        self, member: Member, backups: Backups, first: str, itself: Callable[[], Server]
    ) -> None:
        self._member, self._backups = member, backups
        self._first, self._itself = first, itself
        self._load_told = 0.0
        self._refusal: grpc.StatusCode | None = None
        """Why the first server heard nothing last, which is said once."""

    async def FindOwners(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._member.owners

    async def refuse(self, request: Any, context: Any) -> Any:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"{self._member.address} isn't the first server, the one that began without --join",
        )

    Observe = Load = Report = refuse

    async def run(self) -> None:
        """Tell the first server what is held here, and hear from it.

        Raises:
            EpochError: this server's rows are of no use any more.
        """
        member = self._member
        while True:
            member.look_after_itself()
            try:
                await self._report()
                self._refusal = None
            except grpc.RpcError as error:
                self._say_once(error)
            if member.leaving and not member.may_serve:
                rows = member.share.holder.rows
                log.warning("%s doesn't answer: ending with %d rows", self._first, rows)
                member.ended.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(member.news.wait(), REPORT_SECONDS)
            member.news.clear()

    async def _report(self) -> None:
        member, said, itself = self._member, time.monotonic(), self._itself()
        tells_load = itself.load is not None and said - self._load_told >= LOAD_SECONDS
        report = write_report(itself, version=member.owners.version, load=tells_load)
        owners = await member.stubs.of(self._first).Report(report, timeout=1.0)
        if member.share.epoch in owners.superseded:
            member.hold(Share(Holder()))
        self._backups.copies.forget((), owners.superseded)
        if member.life in owners.gone:
            raise EpochError(
                f"{member.address} was silent for so long that another server holds its rows now: "
                "start this server anew"
            )
        if member.share.epoch and owners.epoch and owners.epoch != member.share.epoch:
            raise EpochError(
                f"{self._first} serves other tables than {member.address} holds: it began anew; "
                "start this server anew, too"
            )
        member.owners, member.service.leased_until = owners, said + LEASE_SECONDS
        self._load_told = said if tells_load else self._load_told
        await self._backups.heed(owners)
        # What it said may be out of date by now: it may have taken something.
        if owners.released and member.leaving and not member.share.holder.held.any():
            member.ended.set()

    def _say_once(self, error: grpc.RpcError) -> None:
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        if code is not None and code is not self._refusal:
            told = error.details() or code.name
            log.warning("trying again to report to %s: %s", self._first, told)
        self._refusal = code
