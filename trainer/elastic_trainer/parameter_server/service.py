"""Service: answers workers, which open tables, pull rows, push gradients and close.

A pull goes from here to Holder.pull, and from there to its table; a push to Holder.push. What
servers tell one another, such as which rows are here and until when they may be served, stands
beside it (server.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from elastic_trainer.parameter_server.holder import Gradients, Holder, Verdict
from elastic_trainer.parameter_server.load import Meter
from elastic_trainer.parameter_server.pull_reply import SERVICE, PullReply
from elastic_trainer.parameter_server.wire import OPTIONS, unpack, unpack_floats
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.proto.parameter_server_pb2_grpc import add_ParameterServerServicer_to_server
from elastic_trainer.protocol.guarded_server import guarded_server

T = TypeVar("T")

log = logging.getLogger("elastic_trainer.parameter_server")

WAIT_SECONDS = 0.5
"""How long a request is held that is put off; then the worker asks again."""
POLL_SECONDS = 0.003
REQUESTS = 64
"""At a time, beyond which workers are told to come back; half of them may be put off."""


class Service:
    """All that happens here is on one event loop, so each request is whole before the next.

    Args:
        meter: counts what is served.
        epoch: returns that of what is served; empty: nothing is.
    """

    def __init__(self, meter: Meter, epoch: Callable[[], str]) -> None:
        self.holder = Holder()
        """The rows that are served."""
        self.leased_until = 0.0
        """By time.monotonic(): from then on all pulls and pushes are put off."""
        self._meter, self._epoch = meter, epoch
        self._put_off = 0

    async def Open(self, request: Any, context: Any) -> Any:  # noqa: N802
        def opened() -> Any:
            self._refuse_other_epoch(request.epoch)
            for text in request.tables:
                self.holder.add_table(text)
            clock = self.holder.clocks.open(request.worker, request.clock, time.monotonic())
            return messages.OpenReply(clock=clock)

        return await checked(context, opened)

    async def Close(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.holder.clocks.close(request.worker, time.monotonic())
        return messages.CloseReply()

    async def Pull(self, request: Any, context: Any) -> Any:  # noqa: N802
        ids = await checked(context, lambda: unpack(request.ids))

        def pulled() -> Any:
            self._refuse_other_epoch(request.history.epoch)
            verdict, rows = self.holder.pull(
                request.worker,
                request.table,
                ids,
                request.clock,
                request.staleness,
                time.monotonic(),
                adopted=adopted_in(request.history),
            )
            told = messages.Verdict.Value(verdict.name)
            return PullReply(told, b"" if rows is None else rows.numpy())

        began = time.perf_counter()
        reply = await self._served(context, pulled, PullReply(messages.LATER))
        if reply.verdict == messages.DONE:
            self._meter.took("pull", len(ids), time.perf_counter() - began)
            self._meter.asked(request.table, ids)
        return reply

    async def Push(self, request: Any, context: Any) -> Any:  # noqa: N802
        def pushed() -> Any:
            # One that was put off, or comes late, may be of rows before a load.
            self._refuse_other_epoch(request.history.epoch)
            tables = self.holder.tables
            if any(one.table not in tables for one in request.gradients):
                return messages.PushReply(verdict=messages.NOT_OPEN)
            parts = []
            for one in request.gradients:
                settings = tables[one.table].settings
                sums = unpack_floats(one.sums, settings.width, settings.dtype)
                parts.append(Gradients(one.table, unpack(one.ids), unpack(one.seen), sums, one.lr))
            at = time.perf_counter()
            verdict = self.holder.push(
                request.worker,
                request.sequence,
                parts,
                time.monotonic(),
                adopted=adopted_in(request.history),
            )
            if verdict is Verdict.DONE:
                rows = sum(len(one.ids) for one in parts)
                self._meter.took("update", rows, time.perf_counter() - at)
                self._meter.took("push", rows, time.perf_counter() - began)
                for one in parts:
                    self._meter.asked(one.table, one.ids, one.seen)
            return messages.PushReply(verdict=verdict.name)

        began = time.perf_counter()
        return await self._served(context, pushed, messages.PushReply(verdict=messages.LATER))

    def _refuse_other_epoch(self, epoch: str) -> None:
        """Raises ValueError: who trains on went on from other rows than there are now, and would
        not notice."""
        if epoch and self._epoch() not in ("", epoch):
            raise ValueError(
                "the parameter servers began anew, without the rows that this worker has trained: "
                "start the workers anew, too"
            )

    async def _served(self, context: Any, serve: Callable[[], Any], later: Any) -> Any:
        """Return what `serve` does, again while it says LATER, for a moment."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            now = time.monotonic()
            reply = await checked(context, serve) if now < self.leased_until else later
            if reply.verdict != messages.LATER or now >= deadline:
                return reply
            if self._put_off >= REQUESTS // 2:
                return reply
            self._put_off += 1
            try:
                await asyncio.sleep(POLL_SECONDS)
            finally:
                self._put_off -= 1


def adopted_in(history: Any) -> int | None:
    """Return the last adoption before the rows that a worker goes on from; None: any may be."""
    return int(history.adopted) if history.HasField("adopted") else None


async def checked(context: Any, call: Callable[[], T]) -> T:
    """Return what `call` does; what it refuses is told in words."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


async def listen(answers: Any, host: str, port: int, token: str) -> grpc.aio.Server:
    """Have these methods, named as their requests, answer all who have the token.

    Raises:
        OSError: the address can't be bound.
        PermissionError: others could reach it, and there is no token.
    """
    server = guarded_server((host, port), token, log, options=OPTIONS, most_calls=REQUESTS)
    add_ParameterServerServicer_to_server(answers, server)  # type: ignore[no-untyped-call]
    pull = grpc.unary_unary_rpc_method_handler(
        answers.Pull, messages.PullRequest.FromString, PullReply.write
    )
    server.add_registered_method_handlers(SERVICE, {"Pull": pull})
    await server.start()
    return server
