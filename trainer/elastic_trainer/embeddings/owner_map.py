"""OwnerMap: which holder has which bucket, and who keeps its copy. Pure; every rank works out the
same one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS

NOBODY = -1
"""The owner of a bucket whose holder is gone."""
FREEZE_SECONDS = 0.05
"""In which parts are moved between two steps, where there is time for more steps."""
WORTH_STEPS = 10
"""So many steps take as long as parts between two of them, at the most."""


@dataclass(frozen=True)
class OwnerMap:
    """Holders are numbered from 0, as ranks are.

    Args:
        version: of the round that it is for; grows with each change.
        owners: by bucket.
        keepers: by bucket, the holder that has a copy of it; NOBODY where there is none.
    """

    version: int
    owners: tuple[int, ...]
    keepers: tuple[int, ...] = (NOBODY,) * BUCKETS

    def __post_init__(self) -> None:
        for held in (self.owners, self.keepers):
            if len(held) != BUCKETS:
                raise ValueError(f"an owner map of {len(held)} buckets: expected {BUCKETS}")

    @classmethod
    def even(cls, version: int, holders: int) -> OwnerMap:
        """Return the map where nobody holds anything yet."""
        return assign(version, [NOBODY] * BUCKETS, holders)

    def of(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the owners of these buckets."""
        return self.owner_of[buckets]

    @cached_property
    def owner_of(self) -> NDArray[np.int64]:
        """Return the owners, by bucket."""
        return np.asarray(self.owners, dtype=np.int64)

    @cached_property
    def keeper_of(self) -> NDArray[np.int64]:
        """Return the keepers, by bucket."""
        return np.asarray(self.keepers, dtype=np.int64)

    def held_by(self, holder: int) -> list[int]:
        """Return the holder's buckets."""
        return _places(self.owner_of, holder)

    def kept_by(self, holder: int) -> list[int]:
        """Return the buckets of which the holder has a copy."""
        return _places(self.keeper_of, holder)

    def with_keepers(self, keeper: Mapping[int, int]) -> OwnerMap:
        """Return the map with a copy of each holder's buckets where `keeper` says."""
        return replace(self, keepers=tuple(keeper[one] for one in self.owners))

    def places(self, bucket: int) -> set[int]:
        """Return who has the bucket or a copy of it."""
        return {self.owners[bucket], self.keepers[bucket]} - {NOBODY}


def _places(holders: NDArray[np.int64], one: int) -> list[int]:
    found: list[int] = np.flatnonzero(holders == one).tolist()
    return found


def keepers_in(ring: Sequence[int], local_world: int) -> dict[int, int]:
    """Return who keeps each holder's copies: the one with its place on the next node, or where
    there is one node, the next holder; NOBODY for one that is alone.

    Args:
        ring: the holders, node by node.
        local_world: how many of them each node has.
    """
    if len(ring) == 1:
        return {ring[0]: NOBODY}
    distance = local_world if 0 < local_world < len(ring) else 1
    return {one: ring[(place + distance) % len(ring)] for place, one in enumerate(ring)}


def assign(version: int, present: Sequence[int], holders: int) -> OwnerMap:
    """Return an even map (counts differ by one at most) that moves the fewest buckets.

    Each holder keeps up to its share; only what exceeds it, or has no holder, moves. So a fifth
    holder beside four gets a fifth of all buckets, and no other bucket moves.

    Args:
        version: of the new map.
        present: by bucket, the holder that has it now, by its new number; NOBODY where it is gone.
        holders: how many there are now.

    Raises:
        ValueError: no holder, or one in `present` that there isn't.
    """
    if holders < 1:
        raise ValueError(f"{holders} holders: expected at least 1")
    held: list[list[int]] = [[] for _ in range(holders)]
    free: list[int] = []
    for bucket, holder in enumerate(present):
        if holder == NOBODY:
            free.append(bucket)
        elif 0 <= holder < holders:
            held[holder].append(bucket)
        else:
            raise ValueError(f"bucket {bucket} is held by {holder}: expected one of {holders}")
    least, larger = divmod(len(present), holders)
    # The larger shares go to those that hold the most already.
    most = sorted(range(holders), key=lambda one: (-len(held[one]), one))
    share = {one: least + (place < larger) for place, one in enumerate(most)}
    for one in range(holders):
        free += held[one][share[one] :]
        del held[one][share[one] :]
    free.sort()
    owners = [NOBODY] * len(present)
    given = 0
    for one in range(holders):
        lacking = share[one] - len(held[one])
        for bucket in (*held[one], *free[given : given + lacking]):
            owners[bucket] = one
        given += lacking
    return OwnerMap(version, tuple(owners))


def assign_to(owners: OwnerMap, stays: Sequence[int]) -> OwnerMap:
    """Return the map that follows, even among these holders, which moves the fewest buckets."""
    number = {holder: place for place, holder in enumerate(stays)}
    present = [number.get(owner, NOBODY) for owner in owners.owners]
    found = assign(owners.version + 1, present, len(stays))
    return OwnerMap(found.version, tuple(stays[one] for one in found.owners))


def in_pieces(
    present: OwnerMap, target: OwnerMap, sizes: Sequence[int] | NDArray[np.int64], most: int
) -> list[OwnerMap]:
    """Return the maps on the way from one to another, the last one included, each a piece after the
    one before in which no holder gives and takes more than `most`, or one bucket.

    Args:
        sizes: by bucket.
    """
    pieces: list[list[int]] = []
    loads: list[dict[int, int]] = []
    # By holders, the piece to which their last bucket went: a look at all before it for each bucket
    # would take longer than a piece may.
    newest: dict[tuple[int, ...], int] = {}
    for bucket in differing(present, target):
        work = _work(present, target, bucket, int(sizes[bucket]))
        holders = tuple(work)
        place = newest.get(holders, 0)
        while place < len(pieces) and not _fits(work, loads[place], most):
            place += 1
        if place == len(pieces):
            pieces.append([])
            loads.append({})
        newest[holders] = place
        pieces[place].append(bucket)
        for one, more in work.items():
            loads[place][one] = loads[place].get(one, 0) + more
    owners, keepers = list(present.owners), list(present.keepers)
    found = []
    for piece in pieces:
        for bucket in piece:
            owners[bucket], keepers[bucket] = target.owners[bucket], target.keepers[bucket]
        found.append(OwnerMap(target.version, tuple(owners), tuple(keepers)))
    return found


def _fits(work: Mapping[int, int], load: Mapping[int, int], most: int) -> bool:
    """Tell whether a piece in which holders have this load has room for that work, too."""
    for one, more in work.items():
        if (before := load.get(one, 0)) and before + more > most:
            return False
    return True


def differing(before: OwnerMap, after: OwnerMap) -> list[int]:
    """Return the buckets that another holder, or keeper, has in one map than in the other."""
    found: list[int] = np.flatnonzero(
        (before.owner_of != after.owner_of) | (before.keeper_of != after.keeper_of)
    ).tolist()
    return found


def _work(before: OwnerMap, after: OwnerMap, bucket: int, size: int) -> dict[int, int]:
    """Return the bytes that each holder gives or takes, or copies within its memory."""
    new = after.places(bucket) - before.places(bucket)
    if not new:
        return dict.fromkeys(before.places(bucket), size)
    return {before.owners[bucket]: size * len(new), **dict.fromkeys(new, size)}


@dataclass(frozen=True)
class Moves:
    """A holder's part in the way from one map to another. It copies first, and when all have, it
    drops: so at each moment a bucket has as many holders as in one of the maps, at least."""

    goes: list[list[int]]
    """By holder, the buckets that it is given from here, as their owner."""
    comes: list[list[int]]
    """By holder, those that it gives to this one."""
    copies_go: list[list[int]]
    """Likewise, for the holder to have a copy."""
    copies_come: list[list[int]]
    promoted: list[int]
    """Buckets of which a copy is here, whose owner this becomes."""
    demoted: list[int]
    """Buckets owned here, of which this becomes the keeper."""
    dropped: list[int]
    """Buckets owned here no longer."""
    copies_dropped: list[int]


def moves(before: OwnerMap, after: OwnerMap, holder: int, holders: int) -> Moves:
    """Return the part that `holder`, one of so many, has in the way from one map to another."""
    goes, comes, copies_go, copies_come = (_nothing(holders) for _ in range(4))
    found = Moves(goes, comes, copies_go, copies_come, [], [], [], [])
    for bucket in differing(before, after):
        owner, keeper = before.owners[bucket], before.keepers[bucket]
        next_owner, next_keeper = after.owners[bucket], after.keepers[bucket]
        if next_owner != owner:
            if owner == holder:
                found.dropped.append(bucket)
            if next_owner == keeper:
                if keeper == holder:
                    found.promoted.append(bucket)
            else:
                _between(owner, next_owner, bucket, holder, found.goes, found.comes)
        if next_keeper != keeper:
            if keeper == holder:
                found.copies_dropped.append(bucket)
            if next_keeper == owner:
                if owner == holder:
                    found.demoted.append(bucket)
            elif next_keeper != NOBODY:
                _between(owner, next_keeper, bucket, holder, found.copies_go, found.copies_come)
    return found


def _nothing(holders: int) -> list[list[int]]:
    return [[] for _ in range(holders)]


def _between(
    giver: int,
    taker: int,
    bucket: int,
    holder: int,
    goes: list[list[int]],
    comes: list[list[int]],
) -> None:
    if giver == holder:
        goes[taker].append(bucket)
    if taker == holder:
        comes[giver].append(bucket)


def parts_after_a_step(
    left: int,
    step_seconds: float,
    part_seconds: float | None,
    seconds: float,
    late_seconds: float,
    grace_seconds: float,
) -> int:
    """Return how many of the parts that are left to move after a step, one at least.

    As many as have all moved in `seconds`, if that is within FREEZE_SECONDS; more only where all
    wouldn't have moved `late_seconds` after that. Nor do those take longer than WORTH_STEPS steps:
    where they are too late anyway, steps make them little later, and parts that took long for once
    don't have all others move at once. But all go where another step would end after
    `grace_seconds`.

    Args:
        step_seconds: what the last step took.
        part_seconds: what a part took so far, in the mean; None: none has moved yet.
        seconds: may be negative.
        late_seconds: how much later they may have moved at the latest.
        grace_seconds: of the time that who leaves has to live, what is left for steps.
    """
    if step_seconds >= grace_seconds:
        return max(1, left)
    if part_seconds is None:  # unless another step may be too long for who leaves
        return 1 if step_seconds < seconds else max(1, left)

    def within(time: float) -> int:
        return max(1, math.floor(time / part_seconds))

    def in_time(time: float) -> int:
        steps = (time - left * part_seconds) / max(step_seconds, 1e-9)
        return math.ceil(left / (1 + math.floor(steps))) if steps >= 0 else left

    wanted = min(in_time(seconds), within(FREEZE_SECONDS))
    needed = min(in_time(seconds + late_seconds), within(WORTH_STEPS * step_seconds))
    return max(1, wanted, needed)
