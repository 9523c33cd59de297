"""Who begins a round with which state, and from where: decided alike by every rank. Pure.

A state is named by the run that made its last step, and that step: steps of equal number in two
runs differ in bits. Runs are numbered so that a later one has a greater number, hence the greatest
name is the newest state. For it, the nearest source is taken: a live peer, one's own memory, a
peer's memory, storage. Of a replicated state any peer has all; of a sharded one, a part is in the
memory of its own rank and of one rank of the next node, its mirror.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

Identity = tuple[int, int]
"""Run and step."""

NOTHING: Identity = (0, 0)
"""The state that nobody trained."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank has. Only rank 0 says what storage has, and what else concerns all."""

    live: Identity = NOTHING
    memory: tuple[tuple[str, Identity], ...] = ()
    """Training and identity of its sealed slots; of a sharded state only those of this rank in this
    world."""
    mirrored: tuple[tuple[str, Identity, int], ...] = ()
    """Parts of other ranks of this world: training, identity and whose it is."""
    storage: tuple[Identity, ...] = ()
    training: str = ""
    """The storage's: slots of another training are of no use."""
    last_run: int = 0
    """No run number up to this may be used: those known, and the Unix time, so that none is used
    twice even where all that is left of its run is a slot on a node that comes back later."""
    refusal: str | None = None
    """Why there can be no training at all."""


class Source(Enum):
    KEEP = "what it has"
    MEMORY = "its own memory"
    STORAGE = "storage"
    PEER = "a peer"
    MIRROR = "a peer's memory"


@dataclass(frozen=True, slots=True)
class Level:
    identity: Identity
    sources: tuple[Source, ...]
    """By rank."""
    giver: int
    """The rank that has it, or loads it, for those whose source is a peer."""
    mirrors: Mapping[int, int] = field(default_factory=dict)
    """By rank whose source is a mirror: the rank that has its part."""

    @property
    def step(self) -> int:
        return self.identity[1]

    @property
    def loads(self) -> bool:
        """Whether somebody loads, which may fail."""
        return any(source not in (Source.KEEP, Source.PEER) for source in self.sources)

    @property
    def takers(self) -> list[int]:
        return [rank for rank, source in enumerate(self.sources) if source is Source.PEER]


def level(holdings: Sequence[Holding], *, sharded: bool = False) -> Level:
    """The newest state that every rank can have.

    Args:
        holdings: by rank.
        sharded: each rank has its own part; parts of one state are in the memory of all ranks or
            of their mirrors, or else all load from storage, which fits any world.
    """
    first = holdings[0]
    memories = [
        {found for training, found in holding.memory if training == first.training}
        for holding in holdings
    ]
    lives = [holding.live for holding in holdings]
    everybody = range(len(holdings))
    if sharded:
        mirrors = {
            (found, owner): rank
            for rank, holding in enumerate(holdings)
            for training, found, owner in holding.mirrored
            if training == first.training
        }
        parts = [
            memories[rank] | {found for found, owner in mirrors if owner == rank}
            for rank in everybody
        ]
        common = set.intersection(*parts) | set(first.storage)
        if len(set(lives)) == 1:
            common.add(lives[0])
        newest = max(common, default=NOTHING)
        if newest == NOTHING or all(found == newest for found in lives):
            return Level(newest, (Source.KEEP,) * len(holdings), 0)
        if not all(newest in part for part in parts):
            return Level(newest, (Source.STORAGE,) * len(holdings), 0)
        lacking = [rank for rank in everybody if newest not in memories[rank]]
        sources = [Source.MIRROR if rank in lacking else Source.MEMORY for rank in everybody]
        return Level(newest, tuple(sources), 0, {rank: mirrors[newest, rank] for rank in lacking})
    newest = max([NOTHING, *lives, *set.union(*memories), *first.storage])
    alive = [rank for rank in everybody if lives[rank] == newest]
    holders = [rank for rank in everybody if newest in memories[rank]]
    if alive:
        # A peer's live state is as good as one's own memory, and needs no verification.
        sources = [Source.KEEP if rank in alive else Source.PEER for rank in everybody]
        return Level(newest, tuple(sources), alive[0])
    if holders:
        sources = [Source.MEMORY if rank in holders else Source.PEER for rank in everybody]
        return Level(newest, tuple(sources), holders[0])
    return Level(newest, (Source.STORAGE, *[Source.PEER] * (len(holdings) - 1)), 0)


def next_run(holdings: Sequence[Holding]) -> int:
    """The number of the run that begins."""
    known = [identity for holding in holdings for identity in (holding.live, *holding.storage)]
    known += [identity for holding in holdings for _, identity in holding.memory]
    return 1 + max([run for run, _ in known] + [holding.last_run for holding in holdings])
