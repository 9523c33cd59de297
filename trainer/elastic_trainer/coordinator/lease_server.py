"""The edge of the leases: gRPC streams in and out of the pure state machine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from elastic_trainer.proto import leases_pb2
from elastic_trainer.proto.leases_pb2_grpc import LeasesServicer
from elastic_trainer.shards.leases import (
    Answer,
    Done,
    Event,
    Fetch,
    Later,
    Leases,
    Lost,
    Opened,
    Owned,
    Refused,
    State,
    Told,
    step,
)
from elastic_trainer.shards.ranges import Ranges
from elastic_trainer.shards.shards import Shards

LONGEST_WAIT = 30.0
"""Seconds that a request is held, whatever it asks for."""


class _Board:
    """One data set's state; every change to it is one call of `apply`, on one event loop."""

    def __init__(self) -> None:
        self.state = State()
        self._changed = asyncio.Event()

    def apply(self, event: Event) -> Answer:
        self.state, answer = step(self.state, event, time.monotonic())
        if not isinstance(event, Fetch):
            self._changed.set()
            self._changed = asyncio.Event()
        return answer

    async def fetch(self, event: Fetch, wait: float) -> Answer:
        deadline = time.monotonic() + min(max(0.0, wait), LONGEST_WAIT)
        while True:
            answer = self.apply(event)
            now = time.monotonic()
            if not isinstance(answer, Later) or now >= deadline:
                return answer
            until = deadline if answer.at is None else min(deadline, answer.at)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), until - now)


class LeaseService(LeasesServicer):
    """All data sets of a job."""

    def __init__(self) -> None:
        self._boards: dict[str, _Board] = {}
        self._streams: dict[tuple[str, str], object] = {}

    async def Attend(  # noqa: N802  # the service's name
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        first = await anext(aiter(requests))
        kind = first.WhichOneof("request")
        if kind not in ("open", "own"):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"expected open or own first, found {kind}"
            )
        hello = getattr(first, kind)
        name, client = hello.data, hello.client
        board = self._boards.setdefault(name, _Board())
        stream = self._streams[name, client] = object()
        shards = Shards(1, 1, 1)
        try:
            request = first
            while True:
                kind = request.WhichOneof("request")
                message = getattr(request, kind or "fetch")
                try:
                    if kind in ("open", "own"):
                        shards = _shards(message.shards)
                    if kind == "fetch":
                        event = Fetch(client, shards, message.count)
                        answer = await board.fetch(event, message.wait_seconds)
                    else:
                        answer = board.apply(_event(client, kind, message))
                except ValueError as error:
                    answer = Refused(str(error))
                yield _reply(answer)
                request = await anext(aiter(requests))
        except StopAsyncIteration:
            return
        finally:
            # Unless it came back by another stream before this one was found to be over.
            if self._streams.get((name, client)) is stream:
                del self._streams[name, client]
                board.apply(Lost(client))


def _event(client: str, kind: str | None, message: Any) -> Event:
    if kind == "open":
        return Opened(client, message.life, _ranges(message.held))
    if kind == "own":
        return Owned(
            client,
            _shards(message.shards),
            message.life,
            _ranges(message.consumed),
            message.step,
            _ranges(message.committed),
            _ranges(message.held),
            message.again,
        )
    if kind == "tell":
        return Told(
            client, message.life, _ranges(message.consumed), message.step, message.committed
        )
    raise ValueError("expected open, own, tell or fetch, found a request of another version")


def _shards(message: Any) -> Shards:
    return Shards(message.samples, message.epochs, message.size, message.seed)


def _ranges(message: Any) -> Ranges:
    return Ranges(tuple(message.bounds))


def _reply(answer: Answer) -> Any:
    match answer:
        case Refused():
            return leases_pb2.LeaseReply(refusal=answer.reason)
        case Leases():
            return leases_pb2.LeaseReply(
                life=answer.life,
                leases=leases_pb2.Bounds(bounds=answer.ranges.bounds),
                complete=answer.complete,
                below=answer.below,
            )
        case Later() | Done():
            return leases_pb2.LeaseReply()
