"""Moves: a server gives buckets to another one while both go on serving.

The rows are copied in parts, then those that were changed meanwhile, until few are left. These are
copied while the buckets are frozen, whose requests are put off until the other one has taken them.
If nobody knows whether it has, they stay frozen until it says so, or its life is over: never do two
servers take updates of a bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from elastic_trainer.embeddings.hashing import Ids
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.wire import pack, pack_entries, write_settings
from elastic_trainer.proto import parameter_server_pb2 as messages

if TYPE_CHECKING:
    from elastic_trainer.parameter_server.copying import Copier

PART_ROWS = 4096
"""Rows of a message, between which requests are served."""
DROPPED_ROWS = 32_768
"""Rows that the giver forgets at a time, between which requests are served."""
FEW_ROWS = 4096
"""So many changed rows are copied while their buckets are frozen."""
ROUNDS = 20
"""How often changed rows are copied before buckets are frozen, however many are left."""
ANSWER_SECONDS = 10.0


class RefusedError(Exception):
    """The other server doesn't expect this move: it holds nothing of it."""


async def give(
    holder: Holder,
    given: Buckets,
    stub: Any,
    life: str,
    epoch: str,
    is_gone: Callable[[], bool],
    copier: Copier | None = None,
) -> bool:
    """Give these buckets to the server of this life. Return False where it hasn't taken them.

    Args:
        is_gone: tells whether that life is over.
        copier: keeps a copy of this server's rows, which loses what is given.
    """
    move = uuid.uuid4().hex[:16]
    taken = False
    try:
        ids = holder.begin_giving(move, given)
        await _receive(stub, messages.ReceiveRequest(move=move, life=life, buckets=pack(given)))
        for _ in range(ROUNDS):
            await _copy(holder, move, stub, life, ids)
            ids = holder.changed(move)
            if sum(map(len, ids.values())) <= FEW_ROWS:
                break
        if copier is not None:
            await copier.take_out(given)
            await _copy(holder, move, stub, life, ids)
            ids = holder.changed(move)
        holder.freeze(move)  # with no request between, so that these are all that changed
        await _copy(holder, move, stub, life, ids)
        taken = await _ask_to_take(holder, move, given, stub, life, epoch, is_gone)
    except (grpc.RpcError, RefusedError):
        taken = False
    finally:
        holder.end_giving(move, given=taken)
        if copier is not None:
            copier.put_back()
    return taken


async def forget_given(holder: Holder, given: Buckets) -> None:
    """Forget the rows of buckets that were given, with requests between."""
    for _ in holder.drop_in_parts(given, DROPPED_ROWS):
        await asyncio.sleep(0)


async def _copy(holder: Holder, move: str, stub: Any, life: str, ids: Mapping[str, Ids]) -> None:
    for name, wanted in ids.items():
        table = holder.tables[name]
        text = write_settings(table.settings)
        for begin in range(0, len(wanted), PART_ROWS) or (0,):
            part = wanted[begin : begin + PART_ROWS]
            await _receive(
                stub,
                messages.ReceiveRequest(
                    move=move,
                    life=life,
                    table=text,
                    ids=pack(part),
                    entries=pack_entries(table.entries_of(part)),
                ),
            )


async def _receive(stub: Any, part: messages.ReceiveRequest) -> None:
    if not (await stub.Receive(part, timeout=ANSWER_SECONDS)).accepted:
        raise RefusedError


async def _ask_to_take(
    holder: Holder,
    move: str,
    given: Buckets,
    stub: Any,
    life: str,
    epoch: str,
    is_gone: Callable[[], bool],
) -> bool:
    """Ask until there is an answer, or that life is over."""
    request = messages.TakeRequest(
        move=move,
        life=life,
        buckets=pack(given),
        epoch=epoch,
        applied=[
            messages.Applied(worker=worker, sequences=pack(sequences))
            for worker, sequences in holder.applied_in(given).items()
        ],
        steps=[messages.Step(table=name, step=table.step) for name, table in holder.tables.items()],
    )
    while not is_gone():
        with contextlib.suppress(grpc.RpcError):
            return bool((await stub.Take(request, timeout=ANSWER_SECONDS)).taken)
        await asyncio.sleep(0.1)
    return False
