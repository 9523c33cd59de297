"""Moves: a server gives buckets to another one while both go on serving.

They go in groups. A group's cold rows are copied in parts, several on their way at a time, then
those that were changed meanwhile, until few are left. These, and the hot rows that each step
changes, are copied once the group is frozen, whose requests are put off until the other one has
taken it. If nobody knows whether it has, it stays frozen until the other says so, or its life is
over: never do two servers take updates of a bucket. Then it counts as taken, as a copy of the other
one's may have later updates. The giver keeps the rows until the other one has a copy of them
elsewhere, and its own copy has them until then, too: whichever of them is lost, its rows go on from
the newest of what is left (placement.py).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import grpc
import numpy as np

from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.wire import pack, pack_entries, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

GROUP_BUCKETS = BUCKETS
"""Given at a time, and frozen: all, as a server to which a step comes in two parts counts it twice,
and would evict rows too early."""
PART_ROWS = 4096
"""Rows of a message, between which requests are served; more, where a bucket has more."""
LARGE_ROWS = 8 * PART_ROWS
"""The most rows of a message."""
IN_FLIGHT = 4
"""Messages on their way at a time."""
FEW_ROWS = 2048
"""So many changed rows are copied while their buckets are frozen."""
ROUNDS = 20
"""How often changed rows are copied before buckets are frozen, however many are left."""
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
    tell: Callable[[], None] = lambda: None
    """Called whenever some of them aren't held here any more."""


async def give(holder: Holder, order: Order) -> bool:
    """Give the buckets of an order. Return False where the other one hasn't taken all."""
    for begin in range(0, len(order.given), GROUP_BUCKETS):
        group = replace(order, given=order.given[begin : begin + GROUP_BUCKETS])
        taken = await _give_group(holder, group)
        if taken is not Taken.NO:
            order.tell()
        if taken is not Taken.YES:
            return False
    return True


async def _give_group(holder: Holder, order: Order) -> Taken:
    move = uuid.uuid4().hex[:16]
    taken = Taken.NO
    try:
        holder.begin_giving(move, order.given)
        begins = messages.ReceiveRequest(buckets=pack(order.given))
        await _receive(order, move, begins)
        for part in holder.some_at_a_time(order.given):
            holder.find_hot(move, part)
            await asyncio.sleep(0)
        await _send(order, move, _whole(holder, move, order.given))
        for _ in range(ROUNDS):
            ids = holder.changed(move)
            if sum(map(len, ids.values())) <= FEW_ROWS:
                break
            await _copy(holder, move, order, [ids])
        else:
            ids = holder.changed(move)
        hot = holder.freeze(move)  # with no request between, so that these are all that changed
        await _copy(holder, move, order, [ids, hot])
        taken = await _ask_to_take(holder, move, order)
    except (grpc.RpcError, RefusedError):
        taken = Taken.NO
    finally:
        holder.end_giving(move, taker="" if taken is Taken.NO else order.taker)
    return taken


async def _copy(holder: Holder, move: str, order: Order, ids: Iterable[Mapping[str, Ids]]) -> None:
    """Send these rows, as they are when their part's turn comes."""
    await _send(order, move, _parts(holder, ids))


async def _send(order: Order, move: str, parts: Iterable[messages.ReceiveRequest]) -> None:
    """Send these parts, some at a time; each is made when its turn comes."""
    on_their_way: deque[asyncio.Task[None]] = deque()
    try:
        for part in parts:
            on_their_way.append(asyncio.create_task(_receive(order, move, part)))
            if len(on_their_way) == IN_FLIGHT:
                await on_their_way.popleft()
        while on_their_way:
            await on_their_way.popleft()
    finally:
        for one in on_their_way:
            one.cancel()


def _whole(holder: Holder, move: str, given: Buckets) -> Iterator[messages.ReceiveRequest]:
    """Yield buckets as they lie, each as it is when it is asked for: one that changes goes whole
    into one message, or where it is too large for one, some of its ids into each."""
    for name, table in list(holder.tables.items()):
        part = messages.ReceiveRequest(table=write_settings(table.settings))
        rows = 0
        for bucket in given.tolist():
            if sum(one.counts[bucket] for one in table.stores) > LARGE_ROWS:
                ids = holder.ids_in(np.array([bucket]), move)[name]
                yield from _parts(holder, [{name: ids}])
                continue
            counts, memory = table.read_bucket(bucket)
            if sum(counts):
                part.whole.add(number=bucket, counts=counts, parts=memory)
            rows += sum(counts)
            if rows >= PART_ROWS:
                yield part
                part, rows = messages.ReceiveRequest(table=part.table), 0
        if rows:
            yield part


def _parts(holder: Holder, ids: Iterable[Mapping[str, Ids]]) -> Iterator[messages.ReceiveRequest]:
    for name, wanted in (one for some in ids for one in some.items()):
        table = holder.tables[name]
        text = write_settings(table.settings)
        for part in _cut(wanted):
            entries = pack_entries(table.entries_of(part))
            yield messages.ReceiveRequest(table=text, ids=pack(part), entries=entries)


def _cut(ids: Ids) -> list[Ids]:
    """Cut ids where a bucket ends, so that its rows come together and have room at once; large
    buckets elsewhere, too. Return one part at least."""
    ends = np.append(np.flatnonzero(np.diff(buckets(ids))) + 1, len(ids))
    parts, begin = [ids[:0]] if not len(ids) else [], 0
    while begin < len(ids):
        end = int(ends[np.searchsorted(ends, min(begin + PART_ROWS, len(ids)))])
        if end > begin + LARGE_ROWS:
            end = begin + LARGE_ROWS
        parts.append(ids[begin:end])
        begin = end
    return parts


async def _receive(order: Order, move: str, part: messages.ReceiveRequest) -> None:
    part.move, part.life, part.source = move, order.taker, order.source
    if not (await order.stub.Receive(part, timeout=ANSWER_SECONDS)).accepted:
        raise RefusedError


async def _ask_to_take(holder: Holder, move: str, order: Order) -> Taken:
    """Ask until there is an answer, or that life is over."""
    request = messages.TakeRequest(
        move=move,
        life=order.taker,
        buckets=pack(order.given),
        epoch=order.epoch,
        turn=order.turn,
        applied=[
            messages.Applied(worker=worker, sequences=pack(sequences))
            for worker, sequences in holder.applied_in(order.given).items()
        ],
        steps=[messages.Step(table=name, step=table.step) for name, table in holder.tables.items()],
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
