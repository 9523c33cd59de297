"""Moves: a server gives buckets to another one while both go on serving.

All cold rows are copied in parts, several on their way at a time, then those that were changed
meanwhile, until few are left. These, and the hot rows that each step changes, are copied once the
buckets are frozen, whose requests are put off until the other one has taken them: all at once, as a
server to which a step comes in two parts counts it twice, and would evict rows too early. If nobody
knows whether it has, they stay frozen until the other says so, or its life is over: never do two
servers take updates of a bucket. Then they count as taken, as a copy of the other one's may have
later updates. The giver keeps the rows until the other one has a copy of them elsewhere, and its
own copy has them until then, too: whichever of them is lost, its rows go on from the newest of what
is left (placement.py).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc
import numpy as np

from elastic_trainer.parameter_server import parts
from elastic_trainer.parameter_server.changes import IdsByTable, send_until_few
from elastic_trainer.parameter_server.giving import Giving
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.wire import pack, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

IN_FLIGHT = 4
"""Messages on their way at a time."""
ANSWER_SECONDS = 10.0
RETRY_SECONDS = 0.1


class RefusedError(Exception):
    """The other server doesn't expect this move: it holds nothing of it."""


class Taken(Enum):
    """The end of a move, as far as the giver knows."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The other one was asked to take, and its life ended without an answer."""


@dataclass(frozen=True)
class Order:
    """A move that the first server has ordered, as the giver carries it out."""

    given: Buckets
    source: str
    """The giver's life."""
    taker: str
    """The life of the server that is to take them."""
    stub: Any
    """Stub of that server."""
    epoch: str
    turn: int
    """By which they come there."""
    is_gone: Callable[[], bool]
    """Tells whether the taker's life is over."""


async def give(share: Share, order: Order) -> bool:
    """Give the buckets of an order. Return False where it isn't known that the other one has taken
    them."""
    holder, move = share.holder, uuid.uuid4().hex[:16]
    giving = Giving(share, order.given)
    taken = Taken.NO

    async def send_rows(*some: IdsByTable) -> None:
        rows = (one for ids in some for one in parts.rows_of(holder, ids))
        await _send(order, move, (messages.ReceiveRequest(**one) for one in rows))

    try:
        await _receive(order, move, messages.ReceiveRequest(buckets=pack(order.given)))
        for part in parts.some_at_a_time(holder, order.given):
            giving.find_hot(part)
            await asyncio.sleep(0)
        await _send(order, move, _whole(holder, giving, order.given))
        ids = await send_until_few(giving.changed, send_rows)
        # With no request between, so that these are all that changed.
        await send_rows(ids, giving.freeze())
        taken = await _ask_to_take(holder, move, order)
    except (grpc.RpcError, RefusedError):
        taken = Taken.NO
    finally:
        giving.end(taker="" if taken is Taken.NO else order.taker)
    return taken is Taken.YES


async def _send(order: Order, move: str, some: Iterable[messages.ReceiveRequest]) -> None:
    """Send these parts, several at a time; each is made when its turn comes."""
    on_their_way: deque[asyncio.Task[None]] = deque()
    try:
        for part in some:
            on_their_way.append(asyncio.create_task(_receive(order, move, part)))
            if len(on_their_way) == IN_FLIGHT:
                await on_their_way.popleft()
        while on_their_way:
            await on_their_way.popleft()
    finally:
        for one in on_their_way:
            one.cancel()


def _whole(holder: Holder, giving: Giving, given: Buckets) -> Iterator[messages.ReceiveRequest]:
    """Yield buckets as they lie, each as it is when it is asked for: one that changes goes whole
    into one message, or where it is too large for one, some of its ids into each."""
    for name, table in list(holder.tables.items()):
        part = messages.ReceiveRequest(table=write_settings(table.settings))
        rows = 0
        for bucket in given.tolist():
            if sum(one.counts[bucket] for one in table.stores) > parts.LARGE_ROWS:
                ids = giving.ids_in(np.array([bucket]))[name]
                for one in parts.rows_of(holder, {name: ids}):
                    yield messages.ReceiveRequest(**one)
                continue
            counts, memory = table.read_bucket(bucket)
            if sum(counts):
                part.whole.add(number=bucket, counts=counts, parts=memory)
            rows += sum(counts)
            if rows >= parts.PART_ROWS:
                yield part
                part, rows = messages.ReceiveRequest(table=part.table), 0
        yield part  # also of a table without rows, as its steps go on there


async def _receive(order: Order, move: str, part: messages.ReceiveRequest) -> None:
    part.move, part.life, part.source = move, order.taker, order.source
    if not (await order.stub.Receive(part, timeout=ANSWER_SECONDS)).accepted:
        raise RefusedError


async def _ask_to_take(holder: Holder, move: str, order: Order) -> Taken:
    """Ask until there is an answer, or that life is over."""
    request = messages.TakeRequest(
        move=move,
        life=order.taker,
        epoch=order.epoch,
        turn=order.turn,
        adopted=pack(holder.adopted[order.given]),
        **parts.pushes_in(holder, order.given),
    )
    asked = False
    while not order.is_gone():
        try:
            reply = await order.stub.Take(request, timeout=ANSWER_SECONDS)
        except grpc.RpcError:
            asked = True
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if reply.life != order.taker:
            break
        return Taken.YES if reply.taken else Taken.NO
    return Taken.UNKNOWN if asked else Taken.NO
