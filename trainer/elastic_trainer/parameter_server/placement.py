"""Placement: which server holds which bucket, and what is to be done about it. Pure.

The first server decides, from what all servers say they hold; it remembers nothing that they
don't say, so one that was restarted goes on where the other left off.

    nobody ever held a bucket        the first one begins with all of them
    a server has less than its share  the fewest buckets move to it, a move at a time
    a server wants to leave          all of its buckets move, then it is released
    one has far more to do           some of its busiest buckets move to the one with least to do
    a server is silent for LOST      its life is over: it stopped serving at LEASE by itself
    a bucket that nobody holds       the server that has the newest copy of its rows adopts it;
                                     else its rows are lost

Each move, and each adoption, has a turn, and a bucket the turn by which it came to its holder: so
copies of it are in order, however often it moves. Two kinds of rows count as a copy: those that a
keeper has, and those that a server gave and has kept. Both stay until whoever took the bucket has a
copy elsewhere; only then does it move on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
NEVER_COPIED: NDArray[np.int64] = np.full(BUCKETS, -1)

Buckets = NDArray[np.int64]
Turns = NDArray[np.int64]


@dataclass(frozen=True)
class Kept:
    """Rows of a server that another one has, too, as they were at one moment."""

    life: str
    """Life of the server that held them, or took them."""
    buckets: Buckets
    turns: NDArray[np.int64]
    """By which each had come to who held them then."""
    given: bool = False
    """The one that has them held them, and that life took them from it."""


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
    copies: Sequence[Kept] = ()
    load: ServerLoad | None = None
    """None: it hasn't said yet."""
    rates: NDArray[np.float64] | None = None
    """Rows a second that it was asked for or updated, by bucket."""
    turns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, dtype=np.int64))
    """By bucket; of those that it holds."""
    uncopied: Buckets = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Buckets that it took lately, and of which there is no copy yet."""
    expects_from: frozenset[str] = frozenset()
    """Lives of servers that are giving to it."""

    @property
    def sources(self) -> set[str]:
        """Return the lives of whose rows it keeps a copy."""
        return {one.life for one in self.copies if not one.given}


@dataclass(frozen=True)
class Adoption:
    """An order to a server to hold buckets as it copied them."""

    keeper: Server
    kept: Kept
    """The part of it that is adopted."""
    may_begin: bool
    """False: somebody might still take them from who held them."""


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
        named |= {kept.life for one in servers.values() for kept in one.copies}
        found |= named - present
    return found


def followed(lives: Collection[tuple[str, str]], present: Collection[Server]) -> set[str]:
    """Return those of these lives, each with its address, at whose address there is another one
    now: they can't come back."""
    now = {one.address: one.life for one in present}
    return {life for address, life in lives if now.get(address, life) != life}


def keeper(present: Collection[Server], life: str, now: str) -> Server | None:
    """Return which server is to keep a copy of this one's rows: the next one by address, but who
    does it now goes on."""
    stays = [one for one in present if not one.leaving or one.life == life]
    for one in stays:
        if one.life == now != life or (not now and life in one.sources):
            return one
    ring = sorted(stays, key=lambda one: one.address)
    place = next((number for number, one in enumerate(ring) if one.life == life), None)
    if place is None or len(ring) == 1:
        return None
    return ring[(place + 1) % len(ring)]


def newest_copied(present: Collection[Server], before: Turns) -> Turns:
    """Return by bucket the last turn by which it came to a server that had a copy of it elsewhere
    at some time, or was to have none: what came by an earlier one is too old to go on from.

    Args:
        before: what this returned last.
    """
    found = before.copy()
    for one in present:
        holds = one.held > 0
        holds[one.uncopied] = False
        found[holds] = np.maximum(found[holds], one.turns[holds])
    return found


def next_adoption(
    present: Collection[Server],
    over: Mapping[str, float],
    keepers: Mapping[str, str],
    copied: Turns = NEVER_COPIED,
) -> Adoption | None:
    """Return which of the buckets that nobody holds are adopted next, from their newest copies.

    Args:
        copied: by bucket, `newest_copied`, also of servers that are gone.
        over: lives that are over, and since when that is known.
        keepers: by life, the one that is to keep a copy of its rows; an older one's may be out of
            date. Of lives that aren't here, that isn't known.
    """
    nobody = np.array(place(present).owners) == NOBODY
    if not nobody.any():
        return None
    copies = [
        (one, kept)
        for one in present
        for kept in one.copies
        if kept.given or _is_newest(one, kept.life, present, keepers)
    ]
    # What was given is as new as it was when it was taken, a copy of the giver's a bit older.
    copies.sort(key=lambda copy: not copy[1].given)
    newest = np.full(BUCKETS, -1, dtype=np.int64)
    where = np.full(BUCKETS, NOBODY, dtype=np.int64)
    for number, (_, kept) in enumerate(copies):
        of = (kept.turns > newest[kept.buckets]) & (kept.turns >= copied[kept.buckets])
        newest[kept.buckets[of]] = kept.turns[of]
        where[kept.buckets[of]] = number
    found = None
    for number, (one, kept) in enumerate(copies):
        of = nobody[kept.buckets] & (where[kept.buckets] == number)
        if of.any():
            part = replace(kept, buckets=kept.buckets[of], turns=kept.turns[of])
            found = Adoption(one, part, may_begin=_nobody_takes(kept.life, present, over))
            if found.may_begin:
                return found
    return found


def _is_newest(
    one: Server, source: str, present: Collection[Server], keepers: Mapping[str, str]
) -> bool:
    """Tell whether no later keeper of this source has a copy."""
    now = keepers.get(source, one.life)
    if now == one.life:
        return True
    return any(other.life == now and source not in other.sources for other in present)


def _nobody_takes(source: str, present: Collection[Server], over: Mapping[str, float]) -> bool:
    """Tell whether a life is over, and nobody goes on taking from it what it was giving: all have
    said so since."""
    return source in over and all(
        one.heard > over[source] and source not in one.expects_from for one in present
    )


def outdated(present: Collection[Server], life: str) -> list[Kept]:
    """Return what a server keeps that nobody needs: a later holder has it in a copy elsewhere, or
    is to have none."""
    safe = newest_copied(present, NEVER_COPIED)
    found = []
    for one in present:
        for kept in one.copies if one.life == life else ():
            of = kept.turns < safe[kept.buckets]
            if of.any():
                found.append(replace(kept, buckets=kept.buckets[of], turns=kept.turns[of]))
    return found


def is_outdone(server: Server, present: Collection[Server]) -> bool:
    """Tell whether a server that comes back holds what others have held since."""
    if server.giving:
        return False
    mine = server.held == HELD
    return any(
        bool((mine & (other.held == HELD) & (other.turns > server.turns)).any())
        for other in present
        if other.life != server.life
    )


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
    """Return the next step towards even shares, of which there is one at a time. What came to a
    server stays there until there is a copy."""
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
    wanted = {
        (owner, to): moved
        for (owner, to), moved in wanted.items()
        if not np.isin(moved, servers[owner].uncopied).any()
    }
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
    if found is None or np.isin(found.buckets, stays[found.source].uncopied).any():
        return None
    return Move(stays[found.source], stays[found.target], found.buckets)


def slow(present: Collection[Server]) -> list[str]:
    """Return the addresses of servers that take far longer for a row than the others."""
    told = [one for one in present if one.load is not None]
    factors = slowness([one.load for one in told if one.load is not None])
    return [one.address for one, factor in zip(told, factors, strict=True) if factor > 1]


def is_released(server: Server) -> bool:
    """Tell whether a server that leaves holds nothing any more, nor rows that others need."""
    needed = any(one.given for one in server.copies)
    return server.leaving and not server.giving and not server.held.any() and not needed
