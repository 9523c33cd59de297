"""ParameterServer: one process's service to workers, and its part among the servers of its job."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import numpy as np

from elastic_trainer.metrics.exposition import Metric
from elastic_trainer.parameter_server import gazer
from elastic_trainer.parameter_server.backups import Backups
from elastic_trainer.parameter_server.copies import MemoryCopy
from elastic_trainer.parameter_server.copy_log import copies_in
from elastic_trainer.parameter_server.first_server import FirstServer
from elastic_trainer.parameter_server.follower import Follower
from elastic_trainer.parameter_server.load import ServerLoad
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.moves import Moves
from elastic_trainer.parameter_server.page import Page
from elastic_trainer.parameter_server.placement import FROZEN, Server
from elastic_trainer.parameter_server.service import listen, log
from elastic_trainer.parameter_server.writer import Writer

ALL_LEAVE_SECONDS = 2.0
"""How long the first server that is to leave waits to hear whether others are, too: a job's end."""


class ParameterServer:
    """Args:
    address: where others reach this server.
    first: the first server's address; empty: this is it.
    token: the job's.
    storage: of the first server, a folder that outlives it.
    copy_every: seconds between two copies of what changed on another server; 0: none.
    job: its name, in what is told of the servers.
    copy_folder: where copies of others' rows are kept; empty: in memory.

    Raises:
        OSError, ValueError: of the first server: its storage can't be read.
    """

    def __init__(
        self,
        address: str,
        first: str,
        token: str,
        storage: str = "",
        copy_every: float = 0.0,
        job: str = "",
        copy_folder: str = "",
    ) -> None:
        self._token, self._copy_every, self._job = token, copy_every, job
        self.member = member = Member(address, token, 0.0 if first else ALL_LEAVE_SECONDS)
        make_copy = copies_in(copy_folder) if copy_folder else MemoryCopy
        self.backups = backups = Backups(member, make_copy, copies_own=copy_every > 0)
        self.moves = moves = Moves(member, backups)
        self.part = part = (
            Follower(member, backups, first, self.itself)
            if first
            else FirstServer(member, backups, storage, job, self.itself)
        )
        service = member.service
        self.answers = SimpleNamespace(
            # to workers
            Open=service.Open,
            Pull=service.Pull,
            Push=service.Push,
            Close=service.Close,
            Save=Writer(member).Save,
            FindOwners=part.FindOwners,
            Load=part.Load,
            Observe=part.Observe,
            # to other servers
            Report=part.Report,
            Give=moves.Give,
            Receive=moves.Receive,
            Take=moves.Take,
            Keep=backups.Keep,
            Adopt=backups.Adopt,
        )

    def itself(self) -> Server:
        """Return what this server says of itself just now."""
        member, holder = self.member, self.member.share.holder
        states = holder.held.astype(np.int8)
        states[holder.frozen] = FROZEN
        return Server(
            member.address,
            member.life,
            states,
            time.monotonic(),
            giving=self.moves.giving,
            giving_to=self.moves.giving_to,
            leaving=member.says_it_leaves,
            epoch=member.share.epoch,
            copies=tuple(self.backups.kept()),
            load=member.meter.last,
            rates=None if member.meter.last is None else member.meter.bucket_rates,
            turns=holder.turns.copy(),
            uncopied=self.backups.uncopied(),
            expects_from=frozenset(member.share.expects_from),
        )

    def _metrics(self) -> list[Metric]:
        member, load = self.member, self.member.meter.last or ServerLoad()
        held, copies = int(member.share.holder.held.sum()), len(self.backups.copies.kept())
        found = gazer.metrics(member.address, load, held, copies)
        if isinstance(self.part, FirstServer):
            found += gazer.job_metrics(self.part.gazed())
        return found

    async def run(self, host: str, port: int, metrics_port: int | None = None) -> None:
        """Serve until the end.

        Args:
            metrics_port: for HTTP; None: there is none.

        Raises:
            OSError: the address can't be bound.
            PermissionError: others could reach it, and there is no token.
            EpochError: this server's tables are of no use any more.
        """
        server = await listen(self.answers, host, port, self._token)
        log.info("serving %s:%d as %s", host, port, self.member.address)
        page = None
        if metrics_port is not None:
            status = self.part.gazed if isinstance(self.part, FirstServer) else None
            answers = Page(self._job, self._token, self._metrics, status)
            page = await answers.serve(host, metrics_port)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.part.run()), loop.create_task(self.member.ended.wait())]
        if self.backups.copier is not None:
            tasks.append(loop.create_task(self.backups.copier.run(self._copy_every)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await server.stop(1.0)
        if page is not None:
            page.close()
        for one in tasks:
            if one.done():
                one.result()
            one.cancel()
