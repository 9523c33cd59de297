"""The ranks that each rank of a large world is connected to.

gloo connects each rank to each other, and each reads all addresses of all others from the round's
store: one core spends 0.2 s on 64 ranks, 0.7 s on 128, and four times as much for twice as many;
not every process may have sockets for thousands. Most of its collectives talk along rings and
trees, to ranks a power of two away: 2 log2(n) of them. So beyond FULL_MESH_RANKS these are
connected at the beginning of a round, and others when they are first used, by all-to-all, by
gathers, whose root hears each rank itself, or by sends to a rank of one's choice. Rank 0 gathers
what all say as a round begins (gathering.py), so it alone is connected to each.

All of a round's ranks connect in the same way. In small worlds each is connected to each other, as
every survivor then sees at once that a peer has died, and not only by what the agents say.
`python -m benchmarks.group_sizes` compares the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from elastic_trainer.ranks.variable import variable_set

FULL_MESH_VARIABLE = "VOLCANO_ELASTIC_FULL_MESH_RANKS"
"""In the environment of all of the job's containers, to change FULL_MESH_RANKS."""
FULL_MESH_RANKS = 64
"""Up to so many, each rank is connected to each other from the beginning."""
_LAZY_VARIABLE = "TORCH_GLOO_LAZY_INIT"
"""torch reads it whenever it makes a group; old versions don't know it, and connect all."""
_ARRIVED = "elastic-arrived"
_TAG = 0x7E1A
"""Told from messages of the training's own."""


def full_mesh_ranks(environment: Mapping[str, str]) -> int:
    """Return up to how many ranks all are connected. Raises ValueError for what is no number."""
    text = environment.get(FULL_MESH_VARIABLE, "")
    if text and not text.isdecimal():
        raise ValueError(
            f"{FULL_MESH_VARIABLE}: expected a number of ranks, found {text!r}; fix or unset it"
        )
    return int(text) if text else FULL_MESH_RANKS


def neighbours(rank: int, world: int) -> tuple[int, ...]:
    """Return the ranks a power of two away from `rank`, around the world, in order."""
    strides = [1 << bit for bit in range((world - 1).bit_length())]
    found = {(rank + sign * stride) % world for stride in strides for sign in (1, -1)}
    return tuple(sorted(found - {rank}))


def connecting_when_used() -> contextlib.AbstractContextManager[None]:
    """Let a group of gloo that is made within connect two ranks when they are first used."""
    return variable_set(_LAZY_VARIABLE, "1")


def await_all(store: Any, world: int, timeout: timedelta) -> None:
    """Return once as many ranks as there are have called this with their round's store.

    Who connects waits for nobody then: gloo's wait for one that comes late can't be broken.

    Raises:
        RuntimeError: they have not, within that time, or the store's connection has ended.
    """
    if store.add(f"{_ARRIVED}/count", 1) == world:
        store.set(f"{_ARRIVED}/all", "")
    store.wait([f"{_ARRIVED}/all"], timeout)


def meet(rank: int, world: int) -> None:
    """Exchange a byte with each neighbour in the default group, so that all are connected.

    Raises:
        RuntimeError: one did not come.
    """
    import torch
    import torch.distributed as dist

    around = neighbours(rank, world)
    taken = [torch.zeros(1, dtype=torch.uint8, device="cpu") for _ in around]
    given = torch.zeros(1, dtype=torch.uint8, device="cpu")
    under_way = [dist.irecv(one, peer, tag=_TAG) for one, peer in zip(taken, around, strict=True)]
    under_way += [dist.isend(given, peer, tag=_TAG) for peer in around]
    for one in under_way:
        if one is not None:
            one.wait()
