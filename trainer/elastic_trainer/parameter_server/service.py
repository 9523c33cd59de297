"""A server's edge: gRPC in and out of its Holder, and its word to the first server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import numpy as np

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.metrics.exposition import Metric
from elastic_trainer.parameter_server import gazer
from elastic_trainer.parameter_server.backups import Backups
from elastic_trainer.parameter_server.copies import MemoryCopy
from elastic_trainer.parameter_server.copy_log import copies_in
from elastic_trainer.parameter_server.copying import Served
from elastic_trainer.parameter_server.director import TICK_SECONDS, Director
from elastic_trainer.parameter_server.epoch_file import EpochFile
from elastic_trainer.parameter_server.files import cut, read_saves
from elastic_trainer.parameter_server.holder import Buckets, Gradients, Holder, Verdict
from elastic_trainer.parameter_server.load import Meter, ServerLoad
from elastic_trainer.parameter_server.machine import usage
from elastic_trainer.parameter_server.moving import Order, give
from elastic_trainer.parameter_server.orders import Orders
from elastic_trainer.parameter_server.page import Page
from elastic_trainer.parameter_server.placement import LEASE_SECONDS, Server
from elastic_trainer.parameter_server.pull_reply import SERVICE, PullReply
from elastic_trainer.parameter_server.reports import observed, read_report, write_report
from elastic_trainer.parameter_server.snapshot import TornError
from elastic_trainer.parameter_server.stubs import Stubs
from elastic_trainer.parameter_server.wire import OPTIONS, pack, unpack, unpack_floats
from elastic_trainer.parameter_server.writer import Writer
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import (
    ParameterServerServicer,
    add_ParameterServerServicer_to_server,
)
from elastic_trainer.protocol.guarded_server import guarded_server

T = TypeVar("T")

log = logging.getLogger("elastic_trainer.parameter_server")

REPORT_SECONDS = 0.2
ALL_LEAVE_SECONDS = 2.0
"""How long the first server that is to leave waits to hear whether others are, too: a job's end."""
LOAD_SECONDS = 2.0
"""How often the first server is told of another one's load."""
WAIT_SECONDS = 0.5
"""How long a request is held that is put off; then the worker asks again."""
POLL_SECONDS = 0.003
REQUESTS = 64
"""At a time, beyond which workers are told to come back; half of them may be put off."""


class EpochError(Exception):
    """The first server serves other tables than this one holds."""


class Service(ParameterServerServicer):
    """All that happens here is on one event loop, so each request is whole before the next.

    Args:
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
        self.holder = Holder()
        self.life = uuid.uuid4().hex[:16]
        self.leaving, self._left = False, 0.0
        self._address = address
        self._epoch = ""
        self._giving_to = ""
        self._move: asyncio.Task[bool] | None = None
        self._news = asyncio.Event()
        """There is something that the first server is to hear at once."""
        self._token = token
        self._stubs = Stubs(token)
        self._owners = messages.Owners()
        self._leased_until = 0.0
        self._refusal: grpc.StatusCode | None = None
        """Why the first server heard nothing last, which is said once."""
        self._put_off = 0
        self._first, self._job = first, job
        self._backups = Backups(
            self.life,
            copies_in(copy_folder) if copy_folder else MemoryCopy,
            copy_every > 0,
            self._served_now,
            self._stubs.of,
        )
        self._writer = Writer(self.life)
        self._copy_every = copy_every
        file = EpochFile(storage)
        if not first and not file.outlives:
            log.warning("without --storage it begins with empty tables whenever it is restarted")
        orders = Orders(self._stubs)
        self._director = None if first else Director(self._begin, orders.move, orders.adopt, file)
        self.ended = asyncio.Event()
        self._leaves_after = 0.0 if first else ALL_LEAVE_SECONDS
        self._meter = Meter(time.monotonic(), usage())
        self._load: ServerLoad | None = None
        self._load_told = 0.0

    # ---- workers

    async def Open(self, request: Any, context: Any) -> Any:  # noqa: N802
        def opened() -> Any:
            for text in request.tables:
                self.holder.add_table(text)
            clock = self.holder.clocks.open(request.worker, request.clock, time.monotonic())
            return messages.OpenReply(clock=clock)

        return await _checked(context, opened)

    async def Close(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.holder.clocks.close(request.worker, time.monotonic())
        return messages.CloseReply()

    async def Pull(self, request: Any, context: Any) -> Any:  # noqa: N802
        ids = await _checked(context, lambda: unpack(request.ids))

        def pulled() -> Any:
            verdict, rows = self.holder.pull(
                request.worker,
                request.table,
                ids,
                request.clock,
                request.staleness,
                time.monotonic(),
            )
            told = messages.Verdict.Value(verdict.name)
            return PullReply(told, b"" if rows is None else rows.numpy())

        later = PullReply(messages.LATER)
        began = time.perf_counter()
        reply = await self._served(context, pulled, later)
        if reply.verdict == messages.DONE:
            self._meter.took("pull", len(ids), time.perf_counter() - began)
            self._meter.asked(request.table, ids)
        return reply

    async def Push(self, request: Any, context: Any) -> Any:  # noqa: N802
        def pushed() -> Any:
            tables = self.holder.tables
            if any(one.table not in tables for one in request.gradients):
                return messages.PushReply(verdict=messages.NOT_OPEN)
            parts = []
            for one in request.gradients:
                settings = tables[one.table].settings
                sums = unpack_floats(one.sums, settings.width, settings.dtype)
                parts.append(Gradients(one.table, unpack(one.ids), unpack(one.seen), sums, one.lr))
            at = time.perf_counter()
            verdict = self.holder.push(request.worker, request.sequence, parts, time.monotonic())
            if verdict is Verdict.DONE:
                rows = sum(len(one.ids) for one in parts)
                self._meter.took("update", rows, time.perf_counter() - at)
                self._meter.took("push", rows, time.perf_counter() - began)
                for one in parts:
                    self._meter.asked(one.table, one.ids, one.seen)
            return messages.PushReply(verdict=verdict.name)

        began = time.perf_counter()
        later = messages.PushReply(verdict=messages.LATER)
        return await self._served(context, pushed, later)

    async def Observe(self, request: Any, context: Any) -> Any:  # noqa: N802
        director = self._director
        if director is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not the first server")
            raise AssertionError
        now = time.monotonic()
        await _checked(
            context, lambda: director.observed.take(request.worker, dict(request.values), now)
        )
        return messages.ObserveReply(status=json.dumps(director.gazed(self._job)))

    async def Save(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = self.holder.held & ~self.holder.frozen
        if not held.any() or time.monotonic() >= self._leased_until:
            return messages.SaveReply()
        try:
            saved = await self._writer.write(request, self.holder, held)
        except TornError:
            return messages.SaveReply()  # who asked asks all servers again
        except OSError as error:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"cannot write {request.place}: {error.strerror}; it has to be a directory that "
                "all servers can write",
            )
            raise
        return messages.SaveReply(
            name=saved.name,
            size=saved.size,
            digest=saved.digest,
            buckets=pack(np.flatnonzero(held)),
        )

    async def Load(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._director is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not the first server")
            raise AssertionError
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
                f"cannot load: {error}; {self._address} has to write its --storage first",
            )
            raise
        self._backups.begin_anew()
        self.holder = holder
        self._begin(self._director.epoch)
        self._report_self()
        return messages.LoadReply(verdict=messages.DONE)

    async def FindOwners(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._director is None:
            return self._owners
        self._report_self()
        return self._director.owners()

    async def _served(self, context: Any, serve: Callable[[], Any], later: Any) -> Any:
        """Return what `serve` does, again while it says LATER, for a moment."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            now = time.monotonic()
            reply = await _checked(context, serve) if now < self._leased_until else later
            if reply.verdict != messages.LATER or now >= deadline:
                return reply
            if self._put_off >= REQUESTS // 2:
                return reply
            self._put_off += 1
            try:
                await asyncio.sleep(POLL_SECONDS)
            finally:
                self._put_off -= 1

    # ---- other servers

    async def Report(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._director is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{self._address} isn't the first server: join the one that began without --join",
            )
            raise AssertionError
        server = await _checked(context, lambda: read_report(request))
        self._director.report(server, request.version)
        return self._director.owners(request.life)

    async def Give(self, request: Any, context: Any) -> Any:  # noqa: N802
        given = unpack(request.buckets)
        if request.epoch != self._epoch or self._gives() or not self.holder.held[given].all():
            return messages.GiveReply(given=False)
        self._giving_to = request.life
        self._move = asyncio.get_running_loop().create_task(
            give(
                self.holder,
                Order(
                    given,
                    self.life,
                    request.life,
                    self._stubs.of(request.address),
                    self._epoch,
                    request.turn,
                    lambda: request.life in self._owners.gone,
                    self._news.set,
                ),
            )
        )
        # Whoever asked may be gone meanwhile; what began goes on.
        return messages.GiveReply(given=await asyncio.shield(self._move))

    def _gives(self) -> bool:
        return self._move is not None and not self._move.done()

    async def Receive(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.life != self.life or request.source in self._owners.gone:
            return messages.ReceiveReply(accepted=False)

        def received() -> bool:
            if not request.table:
                return self.holder.expect(request.move, unpack(request.buckets), request.source)
            if request.whole:
                return all(
                    self.holder.receive_bucket(
                        request.move, request.table, one.number, one.counts, one.parts
                    )
                    for one in request.whole
                )
            ids: Ids = unpack(request.ids)
            return self.holder.receive(request.move, request.table, ids, list(request.entries))

        return messages.ReceiveReply(accepted=await _checked(context, received))

    async def Take(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.life != self.life or self._epoch not in ("", request.epoch):
            return messages.TakeReply(taken=False, life=self.life)
        if self.ended.is_set():  # what it took before it still says
            self.holder.expect_nothing_from(self.holder.expects_from)
        taken = self.holder.take(
            request.move,
            unpack(request.buckets),
            {one.worker: unpack(one.sequences) for one in request.applied},
            {one.table: one.step for one in request.steps},
            request.turn,
        )
        if taken:
            self._epoch = request.epoch
            self._came(unpack(request.buckets))
        return messages.TakeReply(taken=taken, life=self.life)

    def _came(self, buckets: Buckets) -> None:
        self._backups.came(buckets)
        self._news.set()

    async def Keep(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.life == self.life and request.ends:
            self._backups.copies.forget((request.source,), ())
            return messages.KeepReply(kept=True)
        if request.life != self.life or self._epoch not in ("", request.epoch):
            return messages.KeepReply(kept=False)
        kept = await _checked(context, lambda: self._backups.keep(request))
        return messages.KeepReply(kept=kept)

    async def Adopt(self, request: Any, context: Any) -> Any:  # noqa: N802
        # An order that comes late may have been given to another one since.
        late = time.monotonic() >= self._leased_until
        if late or request.life != self.life or self._epoch not in ("", request.epoch):
            return messages.AdoptReply(adopted=False)
        adopted = self._backups.adopt(request)
        if adopted:
            self._epoch = request.epoch
            self._news.set()
        return messages.AdoptReply(adopted=adopted)

    def _served_now(self) -> Served:
        told, none = self._owners, messages.Owners()
        return Served(self.holder, self._epoch, told.keeper, told.keeper_life, told != none)

    # ---- the first server

    def _begin(self, epoch: str) -> None:
        self._epoch = epoch
        self.holder.held[:] = True
        self.holder.turns[:] = time.time_ns()  # after those of an epoch before

    def _itself(self) -> Server:
        giving = self._gives()
        return observed(
            self._address,
            self.life,
            self.holder.held,
            self.holder.frozen,
            giving=giving,
            giving_to=self._giving_to if giving else "",
            leaving=self.leaving and time.monotonic() >= self._left + self._leaves_after,
            epoch=self._epoch,
            copies=self._backups.kept(),
            load=self._load,
            rates=self._meter.bucket_rates if self._load is not None else None,
            turns=self.holder.turns,
            uncopied=self._backups.uncopied(),
            expects_from=self.holder.expects_from,
        )

    def _measure(self) -> None:
        holder = self.holder
        self._load = self._meter.load(time.monotonic(), usage(), holder.tables, holder.steps)

    def _metrics(self) -> list[Metric]:
        load = self._load or ServerLoad()
        held, copies = int(self.holder.held.sum()), len(self._backups.copies.kept())
        found = gazer.metrics(self._address, load, held, copies)
        if self._director is not None:
            found += gazer.job_metrics(self._director.gazed(self._job))
        return found

    def _report_self(self) -> None:
        if self._director is not None:
            self._director.report(self._itself(), 0)
            self._owners = self._director.owners(self.life)
            self._leased_until = float("inf")

    async def _direct(self, director: Director) -> None:
        while True:
            self._measure()
            await self._backups.heed(self._owners)
            self._report_self()  # as it is when it may end
            director.tick()
            if self.leaving and director.may_end(self.life):
                self.ended.set()
            self.holder.forget_silent(time.monotonic())
            await asyncio.sleep(TICK_SECONDS)

    # ---- the others

    async def _follow(self) -> None:
        """Tell the first server what is held here, and hear from it, as long as this one runs."""
        while True:
            said = time.monotonic()
            self._measure()
            itself = self._itself()
            tells_load = itself.load is not None and said - self._load_told >= LOAD_SECONDS
            report = write_report(
                itself, version=self._owners.version, rows=self.holder.rows, load=tells_load
            )
            try:
                owners = await self._stubs.of(self._first).Report(report, timeout=1.0)
                self._refusal = None
                if self._epoch in owners.superseded:
                    self.holder, self._epoch = Holder(), ""
                self._backups.copies.forget((), owners.superseded)
                if self.life in owners.gone:
                    raise EpochError(
                        f"{self._address} was silent for so long that another server holds its "
                        "rows now: start this server anew"
                    )
                if self._epoch and owners.epoch and owners.epoch != self._epoch:
                    raise EpochError(
                        f"{self._first} serves other tables than {self._address} holds: it began "
                        "anew; start this server anew, too"
                    )
                self._owners, self._leased_until = owners, said + LEASE_SECONDS
                self._load_told = said if tells_load else self._load_told
                await self._backups.heed(owners)
                # What it said may be out of date by now: it may have taken something.
                if owners.released and self.leaving and not self.holder.held.any():
                    self.ended.set()
            except grpc.RpcError as error:
                self._say_once(error)
            if self.leaving and time.monotonic() >= self._leased_until:
                log.warning("%s doesn't answer: ending with %d rows", self._first, self.holder.rows)
                self.ended.set()
            self.holder.forget_silent(time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), REPORT_SECONDS)
            self._news.clear()

    def _say_once(self, error: grpc.RpcError) -> None:
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        if code is not None and code is not self._refusal:
            told = error.details() or code.name
            log.warning("trying again to report to %s: %s", self._first, told)
        self._refusal = code

    # ---- life

    def _page(self) -> Page:
        director = self._director
        status = None if director is None else lambda: director.gazed(self._job)
        return Page(self._job, self._token, self._metrics, status)

    def leave(self) -> None:
        """Give everything away, then end. The first server ends at once where no other one stays,
        which it finds out first."""
        if not self.leaving:
            self.leaving, self._left = True, time.monotonic()

    async def run(self, host: str, port: int, metrics_port: int | None = None) -> None:
        """Serve until the end.

        Args:
            metrics_port: for HTTP; None: there is none.

        Raises:
            OSError: the address can't be bound.
            PermissionError: others could reach it, and there is no token.
            EpochError: this server's tables are of no use any more.
        """
        server = guarded_server(
            (host, port), self._token, log, options=OPTIONS, most_calls=REQUESTS
        )
        add_ParameterServerServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        pull = grpc.unary_unary_rpc_method_handler(
            self.Pull, messages.PullRequest.FromString, PullReply.write
        )
        server.add_registered_method_handlers(SERVICE, {"Pull": pull})
        await server.start()
        log.info("serving %s:%d as %s", host, port, self._address)
        page = None
        if metrics_port is not None:
            page = await self._page().serve(host, metrics_port)
        part = self._follow() if self._director is None else self._direct(self._director)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(part), loop.create_task(self.ended.wait())]
        if self._backups.copier is not None:
            tasks.append(loop.create_task(self._backups.copier.run(self._copy_every)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await server.stop(1.0)
        if page is not None:
            page.close()
        for one in tasks:
            if one.done():
                one.result()
            one.cancel()


async def _checked(context: Any, call: Callable[[], T]) -> T:
    """Return what `call` does; what it refuses is told in words."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise
