"""The agent's stream to its coordinator: found, lost, and found again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from elastic_trainer.identity import Identity, address_toward
from elastic_trainer.proto.coordinator_pb2_grpc import CoordinatorStub
from elastic_trainer.protocol.abridgement import abridge
from elastic_trainer.protocol.auth import HEADER
from elastic_trainer.protocol.encoding import decode, encode_agent
from elastic_trainer.protocol.message import (
    MESSAGE_BYTES,
    AgentMessage,
    AskWhole,
    Heartbeat,
    Hello,
    Whole,
)
from elastic_trainer.protocol.pace import silence
from elastic_trainer.retry import coordinator_policy

log = logging.getLogger(__name__)

SILENT_SECONDS = 3.0
"""Without a word from the coordinator for so long, connect anew; longer in a large job, where it
beats more slowly."""
STARTING_SECONDS = 30.0
"""For a coordinator to start, which agents that started sooner find nobody at."""
REFUSED_SECONDS = 45.0
"""How long an agent that is refused tries again: for a moment a name may still lead to the
coordinator of an earlier job, which has Kubernetes' 30 s to end."""
REFUSAL_SECONDS = 5.0
"""After a refusal, in which the endpoint is another job's, though its coordinator may just begin
anew."""
LAST_WORD_SECONDS = 1.5
"""At the end, for the coordinator to hear what is still to be said."""

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION)

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else a retry waits for the last one's back-off
    ("grpc.enable_http_proxy", 0),
]


class CoordinatorStream:
    """All on one event loop.

    Args:
        identity: of this agent.
        resync_messages: a new stream's first: all that the coordinator may have forgotten.
        receive: called with each message.
        lost: called when the stream ended or none came about; the next try follows.
        refused: called with the reason where the coordinator will not have this agent.
        where: returns host and port of the coordinator to dial, at each try.
    """

    def __init__(
        self,
        identity: Identity,
        resync_messages: Callable[[], Iterable[AgentMessage]],
        receive: Callable[[Any], None],
        lost: Callable[[], None],
        refused: Callable[[str], None],
        where: Callable[[], tuple[str, int]],
    ) -> None:
        self.address = identity.address
        """Where this node's workers can be reached; empty until it is known."""
        self.connected = False
        """The coordinator has answered, and its stream is open."""
        self.ended_by: tuple[str, int] | None = None
        """Host and port of the other end of the newest stream that was open, if that ended it; None
        where the stream fell silent, too."""
        self._identity = identity
        self._resync_messages, self._receive = resync_messages, receive
        self._lost, self._refused, self._where = lost, refused, where
        self.dialled = (identity.host, identity.port)
        """Host and port of the newest try."""
        self._was_connected = False
        self._attending: asyncio.Task[None] | None = None
        self._dial_now = asyncio.Event()
        self._outbox: asyncio.Queue[AgentMessage | None] | None = None
        self._refused_since: float | None = None
        self._refused_at = -math.inf
        """When it was refused last."""
        self._closing = False
        self._beat = 0.0
        """Seconds between heartbeats, as told last: one coordinator of many that was started anew
        answers them in turn."""
        self._ended = asyncio.Event()
        """No stream is open: the last one's other end has heard all, or is lost."""

    def tell(self, message: AgentMessage) -> None:
        """Without a stream it is dropped: the next one's first messages tell what it led to."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def attend_for_ever(self) -> None:
        where = f"{self._identity.host}:{self._identity.port}"
        while not self._closing:
            # Agents start together, and one of them has the coordinator to start.
            quiet = 0.0 if self._was_connected else STARTING_SECONDS
            policy = coordinator_policy(quiet_seconds=quiet)
            await policy.call_async(
                self._attend_once, transient=_no_answer, what=where, sleep=self._pause
            )
            await self._pause(policy.first_wait)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._dial_now.wait(), seconds)

    def dial_anew(self, to: tuple[str, int] | None = None) -> None:
        """Leaves the coordinator, of which no further word is heard, for the one that `where`
        says.

        Args:
            to: its host and port. A try that leads there already goes on: a coordinator that is
                started anew would take the end of one that it has heard for a lost node.
        """
        self._dial_now.set()
        if self._attending is not None and not self._closing and self.dialled != to:
            self._outbox = None
            self.connected = False
            self._attending.cancel()
            self._attending = None

    async def _attend_once(self) -> None:
        """Returns when a stream that was open has ended; raises where none came about."""
        self._dial_now.clear()
        attending = self._attending = asyncio.ensure_future(self._attend())
        try:
            await attending
        except asyncio.CancelledError:
            left = self._attending is not attending
            self._attending = None
            self._end_stream()
            if not left:
                raise
        except (TimeoutError, grpc.RpcError, OSError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and error.code() in _REFUSALS:
                self._refuse(str(error.details()))
            log.debug("no coordinator at %s:%d: %r", *self.dialled, error)
            was_open = self.connected
            if was_open:
                self.ended_by = None if isinstance(error, TimeoutError) else self.dialled
            self._end_stream()
            if not (was_open or self._closing):
                raise
        else:
            if self.connected:
                self.ended_by = self.dialled
            self._end_stream()

    def _end_stream(self) -> None:
        self._outbox = None
        self.connected = False
        self._lost()

    async def close(self) -> None:
        """Returns once the coordinator has heard all, or soon after. There is no further stream.

        It may be this agent's own, and be ended next: by then it has to know why.
        """
        self._closing = True
        if self._outbox is not None:
            self._outbox.put_nowait(None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), LAST_WORD_SECONDS)

    async def _attend(self) -> None:
        host, port = self.dialled = self._where()
        if not self.address:
            self.address = await asyncio.to_thread(address_toward, host, port)
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
        address = found[0][4][0]
        target = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
        async with grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
            token = self._identity.token
            call = CoordinatorStub(channel).Attend(  # type: ignore[no-untyped-call]
                metadata=((HEADER, token),) if token else ()
            )
            # What is told from here on comes after these, so nothing falls between.
            outbox = self._outbox = asyncio.Queue()
            self._ended.clear()
            for told in self._resync_messages():
                outbox.put_nowait(told)
            # A coordinator of an earlier version refuses a Hello with digests: it gets the whole.
            writing = _Writing(call, outbox, may_abridge=self._refused_since is None)
            writer = asyncio.ensure_future(writing.run())
            try:
                while True:
                    patience = silence(SILENT_SECONDS, self._beat)
                    envelope = await asyncio.wait_for(call.read(), patience)
                    if envelope is grpc.aio.EOF:
                        return
                    if self._attending is not asyncio.current_task():
                        return
                    message = decode(envelope)
                    if isinstance(message, AskWhole):  # it hasn't let this agent in yet
                        outbox.put_nowait(writing.abridged)
                        continue
                    writing.abridged = Whole()
                    self.connected = self._was_connected = True
                    self._refused_since = None
                    self.ended_by = None
                    if isinstance(message, Heartbeat):
                        self._beat = message.beat_seconds
                    if message is not None:
                        self._receive(message)
            finally:
                self._outbox = None
                self._ended.set()
                writer.cancel()
                call.cancel()

    @property
    def is_refused(self) -> bool:
        """True while the endpoint is taken for another job's."""
        return time.monotonic() - self._refused_at < REFUSAL_SECONDS

    def _refuse(self, reason: str) -> None:
        now = self._refused_at = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
            where = f"{self._identity.host}:{self._identity.port}"
            log.warning("the coordinator at %s refuses this worker: %s", where, reason)
        elif now - self._refused_since >= REFUSED_SECONDS:
            self._refused(reason)


def _no_answer(error: BaseException) -> bool:
    return isinstance(error, TimeoutError | grpc.RpcError | OSError)


class _Writing:
    """A stream's words to the coordinator, in order.

    Args:
        may_abridge: large parts of the first message, Hello, may be told by their digests.
    """

    def __init__(
        self, call: Any, outbox: asyncio.Queue[AgentMessage | None], may_abridge: bool
    ) -> None:
        self.abridged = Whole()
        """Values that Hello had digests of, until the coordinator lets this agent in."""
        self._call, self._outbox, self._may_abridge = call, outbox, may_abridge

    async def run(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while (message := await self._outbox.get()) is not None:
                envelope = encode_agent(message)
                if self._may_abridge and isinstance(message, Hello):
                    self.abridged = abridge(envelope) or Whole()
                await self._call.write(envelope)
            await self._call.done_writing()
