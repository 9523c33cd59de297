"""The coordinator's edge: gRPC streams in and out of the pure state machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from trainer.coordinator.http import serve_status
from trainer.coordinator.keepalive import OPTIONS
from trainer.coordinator.lease_server import LeaseService
from trainer.coordinator.message import (
    CoordinatorMessage,
    Heartbeat,
    Hello,
    decode,
    encode_coordinator,
)
from trainer.coordinator.model import Event, Lost, Received, Send, Settings, State, Tick
from trainer.coordinator.state import step
from trainer.coordinator.status import status
from trainer.proto.coordinator_pb2_grpc import (
    CoordinatorServicer,
    add_CoordinatorServicer_to_server,
)
from trainer.proto.leases_pb2_grpc import add_LeasesServicer_to_server

log = logging.getLogger("trainer.coordinator")

TICK_SECONDS = 0.05
HEARTBEAT_SECONDS = 0.5

_CLOSE = None
"""What a session's queue holds after its last message."""


class _Session:
    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.outbox: asyncio.Queue[CoordinatorMessage | None] = asyncio.Queue()


class CoordinatorServer(CoordinatorServicer):
    """Holds the state; every change to it is one call of `_apply`, on one event loop."""

    def __init__(self, job: str, settings: Settings) -> None:
        self.job = job
        self.state = State(settings=settings, started=time.monotonic())
        self._sessions: dict[str, _Session] = {}

    def _apply(self, event: Event) -> None:
        before = self.state.phase, self.state.last_round
        self.state, effects = step(self.state, event, time.monotonic())
        for effect in effects:
            session = self._sessions.get(effect.agent)
            if session is not None:
                session.outbox.put_nowait(effect.message if isinstance(effect, Send) else _CLOSE)
        if before != (self.state.phase, self.state.last_round):
            log.info(
                "%s: %s, round %d, %d nodes, step %d, for: %s",
                self.job,
                self.state.phase.value,
                self.state.last_round,
                len(self.state.round.members) if self.state.round else 0,
                self.state.step,
                self.state.round.reason if self.state.round else self.state.reason,
            )

    def status(self) -> dict[str, Any]:
        answer = status(self.state, self.job, time.monotonic(), time.time())
        return {**answer, "pid": os.getpid()}

    async def Attend(  # noqa: N802  # the service's name
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        first = decode(await anext(aiter(requests)))
        if not isinstance(first, Hello) or not first.agent:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"expected a Hello that names its agent first, found {type(first).__name__}",
            )
            return
        older = self._sessions.get(first.agent)
        if older is not None:
            older.outbox.put_nowait(_CLOSE)
            self._apply(Lost(first.agent, "it connected anew"))
        session = self._sessions[first.agent] = _Session(first.agent)
        reader = asyncio.ensure_future(self._read(session, requests))
        try:
            self._apply(Received(first.agent, first))
            while (message := await session.outbox.get()) is not _CLOSE:
                yield encode_coordinator(message)
        finally:
            reader.cancel()
            if self._sessions.get(first.agent) is session:
                del self._sessions[first.agent]
                self._apply(Lost(first.agent))

    async def _read(self, session: _Session, requests: AsyncIterator[Any]) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for envelope in requests:
                message = decode(envelope)
                if message is not None and self._sessions.get(session.agent) is session:
                    self._apply(Received(session.agent, message))
        session.outbox.put_nowait(_CLOSE)

    async def _tick(self) -> None:
        beaten = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._apply(Tick())
            if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
                beaten = time.monotonic()
                for session in self._sessions.values():
                    session.outbox.put_nowait(Heartbeat())

    async def run(self, host: str, port: int, stopped: asyncio.Event) -> None:
        """Serves gRPC on `port` and HTTP on `port + 1` until `stopped`.

        Raises OSError if either address can't be bound.
        """
        # Not shared: a second coordinator on this address must fail, not answer every other call.
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *OPTIONS])
        add_CoordinatorServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        add_LeasesServicer_to_server(LeaseService(), server)  # type: ignore[no-untyped-call]
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot bind {host}:{port}: {error}") from error
        if bound != port:
            raise OSError(f"cannot bind {host}:{port}: address in use")
        http = await serve_status(host, port + 1, self.status)
        await server.start()
        log.info("%s: coordinator on %s:%d, status on :%d", self.job, host, port, port + 1)
        ticking = asyncio.ensure_future(self._tick())
        try:
            waiting = asyncio.ensure_future(stopped.wait())
            await asyncio.wait({ticking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if ticking.done():
                ticking.result()
        finally:
            ticking.cancel()
            http.close()
            for session in self._sessions.values():
                session.outbox.put_nowait(_CLOSE)
            await server.stop(0.2)
