"""Chooses which state a round begins with and from where each rank loads it; decided alike by every
rank. Pure.

A state is named by the run that made its last step, and that step: steps of equal number in two
runs differ in bits. Runs are numbered so that a later one has a greater number, hence the greatest
name is the newest state. For it, the nearest source is taken: a live peer, one's own memory, a
peer's memory, storage. Of a replicated state any peer has all; of a sharded one, a part is in the
memory of its own rank and of one rank of the next node, its mirror; where replicas are sharded
(HSDP), any of them stands in for the others.

Where anybody has a live state, storage isn't asked, but in a contested round: others may have gone
on from that state, and have ended since, and their commits are in storage. So it is where a round
ended in order with a sharded state that memory holds whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

Identity = tuple[int, int]
"""Run and step."""

NOTHING: Identity = (0, 0)
"""The state that nobody trained."""


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a sharded state."""

    identity: Identity
    owner: int
    """The rank whose part it is."""
    world: int
    """Ranks that the state was sharded over."""
    number: int
    """Number of the part: equal for ranks that hold the same, as HSDP's replicas do."""
    numbers: int
    """So many make the state."""
    layout: str = ""
    """Tells ways apart to spread a state over so many ranks, in which a rank's part, or one of the
    same number, may be another."""


@dataclass(frozen=True, slots=True)
class Available:
    """The states that one rank has."""

    live: Identity = NOTHING
    memory: tuple[tuple[str, Identity], ...] = ()
    """Training and identity of its verified slots; of a sharded state only those of this rank in
    this world."""
    mirrored: tuple[tuple[str, Identity, int], ...] = ()
    """Parts of other ranks of this world: training, identity and whose it is."""
    parts: tuple[tuple[str, Part], ...] = ()
    """By training: parts of sharded states in its memory, its own and others', of any world."""
    slots: bool = True
    """It has shared memory, where a part that it lacks may come back from its mirror."""
    stood: Identity = NOTHING
    """Sharded state that its process and all others saved to memory as the last round ended,
    which nobody has gone on from."""
    training: str = ""
    """Training whose folder this rank sees; empty if it hasn't looked. Slots of another
    training are of no use."""
    orphaned: tuple[tuple[str, Identity], ...] = ()
    """States in memory of other trainings that were kept in a folder of the same name."""
    host: str = ""
    """The rank's pod, for those who read an error."""
    node: str = ""
    """Name of the rank's node, whose ranks can share memory."""
    last_run: int = 0
    """No run number up to this may be used: those that the job's nodes know of, and the Unix time,
    so that none is used twice even where all that is left of its run is a slot on a node that comes
    back later."""
    begun: int = 0
    """The run that its process began last."""
    contested: bool = False
    """Others may have gone on from its live state, and storage could not be asked yet."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The commit that rank 0 found in storage, told to all."""

    commits: tuple[Identity, ...] = ()
    unusable: tuple[str, ...] = ()
    """The faults of commits that aren't as they were written."""
    gone: str = ""
    """How it is known, where there are no commits, that there were some; empty: it isn't."""
    run: int = 0
    """The run that begins, which rank 0 has claimed the storage for; 0: it hasn't."""
    refusal: str | None = None
    """Why there can be no training at all."""
    unasked: bool = False
    """It should have been asked for others' commits, and gave no answer."""


class Source(Enum):
    KEEP = "what it has"
    MEMORY = "its own memory"
    STORAGE = "storage"
    PEER = "a peer"
    MIRROR = "a peer's memory"
    PARTS = "the memory of all"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The common state, and where each rank gets it."""

    identity: Identity
    sources: tuple[Source, ...]
    """By rank."""
    giver: int
    """The rank that has it, or loads it, for those whose source is a peer."""
    mirrors: Mapping[int, int] = field(default_factory=dict)
    """By rank whose source is a mirror: the rank that has its part."""
    holders: Mapping[int, int] = field(default_factory=dict)
    """Where the source is the memory of all: by rank of the world that the state was sharded over,
    the rank that has its part now. Of replicas, one at least is there."""
    world: int = 0
    """That world's ranks."""
    layout: str = ""
    """The parts' layout, likewise."""

    @property
    def step(self) -> int:
        return self.identity[1]

    def takes(self, part: Part) -> bool:
        """Return whether a part is of those that the state is loaded from."""
        wanted = (self.identity, self.world, self.layout)
        return (part.identity, part.world, part.layout) == wanted

    @property
    def loads(self) -> bool:
        """Return whether some rank loads, which may fail."""
        return any(source not in (Source.KEEP, Source.PEER) for source in self.sources)

    @property
    def takers(self) -> list[int]:
        return [rank for rank, source in enumerate(self.sources) if source is Source.PEER]


def choose_recovery_source(
    available: Sequence[Available],
    stored: Stored = Stored(),
    *,
    sharded: bool = False,
) -> Recovery:
    """Return the newest state that every rank can have, and each rank's source of it.

    Args:
        available: by rank.
        stored: nothing where storage wasn't asked.
        sharded: each rank has its own part, in its memory or its mirror's; where the world was
            another, a part is a replica's alone, or a rank has no memory to bring its part back to,
            each takes from all what it is to have; where there is a part that nobody's memory
            holds, all load from storage.
    """
    training = common_training(available)
    memories = [{found for name, found in one.memory if name == training} for one in available]
    lives = [one.live for one in available]
    everybody = range(len(available))
    if sharded:
        mirrors = {
            (found, owner): rank
            for rank, one in enumerate(available)
            for name, found, owner in one.mirrored
            if name == training and available[owner].slots
        }
        parts = [
            memories[rank] | {found for found, owner in mirrors if owner == rank}
            for rank in everybody
        ]
        whole = _find_whole(available, training)
        common = set.intersection(*parts) | set(stored.commits) | whole.keys()
        if len(set(lives)) == 1:
            common.add(lives[0])
        newest = max(common, default=NOTHING)
        if newest == NOTHING or all(found == newest for found in lives):
            return Recovery(newest, (Source.KEEP,) * len(available), 0)
        if not all(newest in part for part in parts):
            if newest in whole:
                everyones = (Source.PARTS,) * len(available)
                world, layout, chosen = whole[newest]
                return Recovery(newest, everyones, 0, holders=chosen, world=world, layout=layout)
            return Recovery(newest, (Source.STORAGE,) * len(available), 0)
        lacking = [rank for rank in everybody if newest not in memories[rank]]
        sources = [Source.MIRROR if rank in lacking else Source.MEMORY for rank in everybody]
        return Recovery(
            newest, tuple(sources), 0, {rank: mirrors[newest, rank] for rank in lacking}
        )
    newest = max([NOTHING, *lives, *set.union(*memories), *stored.commits])
    alive = [rank for rank in everybody if lives[rank] == newest]
    holders = [rank for rank in everybody if newest in memories[rank]]
    if alive:
        # A peer's live state is as good as one's own memory, and needs no verification.
        sources = [Source.KEEP if rank in alive else Source.PEER for rank in everybody]
        return Recovery(newest, tuple(sources), alive[0])
    if holders:
        sources = [Source.MEMORY if rank in holders else Source.PEER for rank in everybody]
        return Recovery(newest, tuple(sources), holders[0])
    return Recovery(newest, (Source.STORAGE, *[Source.PEER] * (len(available) - 1)), 0)


def _find_whole(
    available: Sequence[Available], training: str
) -> dict[Identity, tuple[int, str, dict[int, int]]]:
    """Return the states of which all parts are in the ranks' memory: the ranks that each was
    sharded over, its layout, and by owner who has its part, whoever has given least so far.

    Parts of one state in two layouts, as a round that broke may leave them, are not put together.
    """
    holders: dict[tuple[Identity, int, str, int], dict[int, list[int]]] = {}
    lacking: dict[tuple[Identity, int, str, int], set[int]] = {}
    for rank, one in enumerate(available):
        for name, part in one.parts:
            if name == training:
                state = part.identity, part.world, part.layout, part.numbers
                holders.setdefault(state, {}).setdefault(part.owner, []).append(rank)
                lacking.setdefault(state, set(range(part.numbers))).discard(part.number)
    whole: dict[Identity, tuple[int, str, dict[int, int]]] = {}
    for state in (one for one, numbers in lacking.items() if not numbers):
        given: Counter[int] = Counter()
        chosen: dict[int, int] = {}
        for owner, ranks in sorted(holders[state].items()):
            chosen[owner] = min(ranks, key=lambda rank: (given[rank], rank))
            given[chosen[owner]] += 1
        whole[state[0]] = state[1], state[2], chosen
    return whole


def is_live(available: Sequence[Available]) -> bool:
    """Return whether any rank has a state in its process, or all have a sharded one in memory that
    their last round ended with, so that storage needn't be asked."""
    return any(one.live != NOTHING for one in available) or _stands(available)


def _stands(available: Sequence[Available]) -> bool:
    stood = max(one.stood for one in available)
    return stood != NOTHING and stood in _find_whole(available, common_training(available))


def common_training(available: Sequence[Available]) -> str:
    """Return the training that goes on: that of whoever is live, or was so as the last round ended,
    else rank 0's folder's."""
    live = [one.training for one in available if (one.live, one.stood) != (NOTHING, NOTHING)]
    return live[0] if live else available[0].training


def find_other_training(available: Sequence[Available]) -> int | None:
    """Return the first rank whose folder isn't the one the others use; None if all share it."""
    training = common_training(available)
    for rank, one in enumerate(available):
        if one.training and training and one.training != training:
            return rank
    return None


def why_not_begin(found: Recovery, available: Sequence[Available], stored: Stored) -> str | None:
    """Return why training must not start from the beginning, though no state can be used.

    None where it may: nothing was ever committed, or a state was found.
    """
    if found.identity != NOTHING:
        return None
    if stored.unusable:
        return "none of the commits can be used: " + "; ".join(stored.unusable)
    if stored.gone:
        return f"it holds no commit, but {stored.gone}"
    orphaned = [(state, one.host) for one in available for _, state in one.orphaned]
    if orphaned:
        (_, step), host = max(orphaned)
        return (
            f"it holds no commit, but the memory of {host} knows step {step} of a training that "
            "was kept in a folder of this name: it is not the one it was, or another volume"
        )
    return None


def is_contested(available: Sequence[Available]) -> bool:
    """Return whether others may have gone on from the live state, so that storage is asked."""
    return any(one.contested for one in available)


def run_unasked(available: Sequence[Available]) -> int:
    """Return the number of a run that begins with a live state though others may have gone on from
    it: below those that they began since, so that their claims to the storage refuse its commits.
    """
    return 1 + max(max(one.live[0], one.begun) for one in available)


def next_run(available: Sequence[Available]) -> int:
    """Return the number of a run that begins with a live state."""
    known = [identity for one in available for identity in (one.live, one.stood)]
    known += [identity for one in available for _, identity in one.memory]
    return 1 + max([run for run, _ in known] + [one.last_run for one in available])
