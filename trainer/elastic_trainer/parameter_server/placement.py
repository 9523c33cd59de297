"""Placement: which server holds which bucket, and what is to be done about it. Pure.

The first server decides, from what all servers say they hold; it remembers nothing that they
don't say, so one that was restarted goes on where the other left off.

    nobody ever held a bucket        the first one begins with all of them
    a server has less than its share  the fewest buckets move to it, a move at a time
    a server wants to leave          all of its buckets move, then it is released
    one has far more to do           some of its busiest buckets move to the one with least to do
    a server is silent for LOST      its life is over: it stopped serving at LEASE by itself
    a bucket that nobody holds       the server that keeps a copy of its holder's rows adopts it;
                                     else its rows are lost
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.embeddings.owner_map import NOBODY, assign
from elastic_trainer.parameter_server.balance import Holder, relief, slowness
from elastic_trainer.parameter_server.load import ServerLoad

LEASE_SECONDS = 10.0
"""For how long a server serves after it last spoke with the first one."""
LOST_SECONDS = 2 * LEASE_SECONDS
"""How long a server is silent before others may hold what it held."""
SETTLE_SECONDS = 2.0
"""How long a first server that has just begun waits to hear of older ones."""

HELD, FROZEN = 1, 2

Buckets = NDArray[np.int64]


@dataclass(frozen=True)
class Server:
    """A server's last word."""

    address: str
    life: str
    """Unique to its process."""
    held: NDArray[np.int8]
    """By bucket: 0, HELD, or FROZEN: on its way to `giving_to`."""
    heard: float
    giving: bool = False
    giving_to: str = ""
    leaving: bool = False
    epoch: str = ""
    copies: Mapping[str, Buckets] = field(default_factory=dict)
    """By life, the buckets of which it keeps a copy."""
    load: ServerLoad | None = None
    """None: it hasn't said yet."""
    rates: NDArray[np.float64] | None = None
    """Rows a second that it was asked for or updated, by bucket."""


@dataclass(frozen=True)
class Adoption:
    """An order to a server to hold buckets as it copied them."""

    keeper: Server
    source: str
    """The life that held them."""
    buckets: Buckets


@dataclass(frozen=True)
class Move:
    """An order to a server to give buckets to another."""

    source: Server
    target: Server
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Holders by bucket, as workers are told."""

    addresses: tuple[str, ...]
    owners: tuple[int, ...]


def alive(servers: Mapping[str, Server], now: float) -> list[Server]:
    """Return the servers that were heard of lately, by address; of one address the newest life."""
    newest: dict[str, Server] = {}
    for one in servers.values():
        other = newest.get(one.address)
        if now - one.heard < LOST_SECONDS and (other is None or other.heard < one.heard):
            newest[one.address] = one
    return [newest[address] for address in sorted(newest)]


def gone(servers: Mapping[str, Server], now: float, started: float) -> set[str]:
    """Return the lives that are over: silent ones, those that another at their address followed,
    and those to whom somebody gives, or whose rows somebody copied, of whom nothing was heard since
    this one began."""
    present = {one.life for one in alive(servers, now)}
    found = set(servers) - present
    if now - started >= LOST_SECONDS:
        named = {one.giving_to for one in servers.values() if one.giving_to}
        named |= {life for one in servers.values() for life in one.copies}
        found |= named - present
    return found


def followed(known: Mapping[str, str], present: Collection[Server]) -> set[str]:
    """Return the known lives, by address, at whose address there is another one now."""
    now = {one.address: one.life for one in present}
    return {life for address, life in known.items() if now.get(address, life) != life}


def keeper(present: Collection[Server], life: str, now: str) -> Server | None:
    """Return which server is to keep a copy of this one's rows: the next one by address, but who
    does it now goes on."""
    stays = [one for one in present if not one.leaving or one.life == life]
    for one in stays:
        if one.life == now != life or (not now and life in one.copies):
            return one
    ring = sorted(stays, key=lambda one: one.address)
    place = next((number for number, one in enumerate(ring) if one.life == life), None)
    if place is None or len(ring) == 1:
        return None
    return ring[(place + 1) % len(ring)]


def next_adoption(
    present: Collection[Server], over: Collection[str], keepers: Mapping[str, str]
) -> Adoption | None:
    """Return which of the buckets that nobody holds are adopted next.

    Args:
        over: lives that are over, and may be followed.
        keepers: by life, the one that was to keep a copy of its rows at last; an older one's copy
            may be out of date. Of lives that aren't here, that isn't known.
    """
    nobody = np.array(place(present).owners) == NOBODY
    if not nobody.any():
        return None
    for one in present:
        for source in sorted(set(one.copies) & set(over)):
            buckets = one.copies[source]
            if keepers.get(source, one.life) == one.life and nobody[buckets].any():
                return Adoption(one, source, buckets[nobody[buckets]])
    return None


def place(present: Collection[Server]) -> Placement:
    """Return who holds what. A bucket that is frozen in one server and held in another is the
    other's, which has taken it."""
    servers = list(present)
    owners = np.full(BUCKETS, NOBODY, dtype=np.int64)
    for kind in (FROZEN, HELD):
        for number, one in enumerate(servers):
            owners[one.held == kind] = number
    return Placement(tuple(one.address for one in servers), tuple(owners.tolist()))


def next_move(present: Collection[Server]) -> Move | None:
    """Return the next step towards even shares, of which there is one at a time."""
    servers = list(present)
    stays = [number for number, one in enumerate(servers) if not one.leaving]
    if not stays or any(one.giving for one in servers):
        return None
    owners = place(servers).owners
    seats = {number: seat for seat, number in enumerate(stays)}
    target = assign(0, [seats.get(owner, NOBODY) for owner in owners], len(stays)).owners
    wanted: dict[tuple[int, int], list[int]] = {}
    for bucket, (owner, seat) in enumerate(zip(owners, target, strict=True)):
        if owner != NOBODY and owner != stays[seat]:
            wanted.setdefault((owner, stays[seat]), []).append(bucket)
    if not wanted:
        return None
    source, to = min(wanted)
    return Move(servers[source], servers[to], tuple(wanted[source, to]))


def next_relief(present: Collection[Server]) -> Move | None:
    """Return what takes work from the server with most to do, where shares are even already."""
    stays = [one for one in present if not one.leaving]
    if len(stays) < 2 or len(stays) < len(present) or any(one.giving for one in present):
        return None
    loads = [one.load for one in stays]
    if any(load is None for load in loads):
        return None
    factors = slowness([load for load in loads if load is not None])
    holders = []
    for one, factor in zip(stays, factors, strict=True):
        rates = np.zeros(BUCKETS) if one.rates is None else one.rates
        mine = np.flatnonzero(one.held == HELD)
        holders.append(Holder(mine, rates[mine], factor))
    found = relief(holders)
    if found is None:
        return None
    return Move(stays[found.source], stays[found.target], found.buckets)


def slow(present: Collection[Server]) -> list[str]:
    """Return the addresses of servers that take far longer for a row than the others."""
    told = [one for one in present if one.load is not None]
    factors = slowness([one.load for one in told if one.load is not None])
    return [one.address for one, factor in zip(told, factors, strict=True) if factor > 1]


def is_released(server: Server) -> bool:
    """Tell whether a server that leaves holds nothing any more."""
    return server.leaving and not server.giving and not server.held.any()
