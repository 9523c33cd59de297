"""OwnerMap: which holder has which bucket. Pure; every rank works out the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS

NOBODY = -1
"""The owner of a bucket whose holder is gone."""


@dataclass(frozen=True)
class OwnerMap:
    """Holders are numbered from 0, as ranks are.

    Args:
        version: of the round that it is for; grows with each change.
        owners: by bucket.
    """

    version: int
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.owners) != BUCKETS:
            raise ValueError(f"an owner map of {len(self.owners)} buckets: expected {BUCKETS}")

    @classmethod
    def even(cls, version: int, holders: int) -> OwnerMap:
        """Return the map where nobody holds anything yet."""
        return assign(version, [NOBODY] * BUCKETS, holders)

    def of(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the owners of these buckets."""
        return np.asarray(self.owners, dtype=np.int64)[buckets]

    def held_by(self, holder: int) -> list[int]:
        """Return the holder's buckets."""
        return [bucket for bucket, owner in enumerate(self.owners) if owner == holder]


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


def in_pieces(
    present: OwnerMap, target: OwnerMap, sizes: Sequence[int] | NDArray[np.int64], most: int
) -> list[OwnerMap]:
    """Return the maps on the way from one to another, the last one included, each a piece after the
    one before in which no holder gives and takes more than `most`, or one bucket.

    Args:
        sizes: by bucket.
    """
    owners = list(present.owners)
    left = [one for one in range(BUCKETS) if owners[one] != target.owners[one]]
    found = []
    while left:
        load = [0] * (1 + max(*owners, *target.owners))
        later = []
        for bucket in left:
            giver, taker = owners[bucket], target.owners[bucket]
            size = int(sizes[bucket])
            if max(load[giver], load[taker]) and max(load[giver], load[taker]) + size > most:
                later.append(bucket)
                continue
            load[giver] += size
            load[taker] += size
            owners[bucket] = taker
        left = later
        found.append(OwnerMap(target.version, tuple(owners)))
    return found
