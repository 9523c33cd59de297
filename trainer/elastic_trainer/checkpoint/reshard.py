"""Which pieces of a sharded state's parts go from whom to whom when the world changes. Pure.

A box is a rectangle of a tensor: by dimension, where it begins and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]
Boxes = Mapping[str, Box]
"""By the tensor's name."""


class UncoveredError(ValueError):
    """The parts lack something that is wanted."""


@dataclass(frozen=True, slots=True)
class Move:
    """A piece of one tensor."""

    name: str
    box: Box
    """Within the whole tensor."""
    owner: int
    """The rank of the earlier world whose part it is in."""
    giver: int
    """The rank that has that part now."""
    taker: int


def shard_box(
    shape: Sequence[int],
    placements: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
) -> Box:
    """Return the box of a tensor that one rank holds, as torch's Shard divides it: like
    torch.chunk, so that the last ranks may have less, or nothing.

    Args:
        shape: of the whole tensor.
        placements: by dimension of the mesh: the tensor's dimension that it shards, -1 for none.
        mesh_shape: ranks by dimension of the mesh.
        coordinate: of the rank in the mesh.
    """
    box = [(0, size) for size in shape]
    for dimension, ranks, place in zip(placements, mesh_shape, coordinate, strict=True):
        if dimension < 0:
            continue
        begin, end = box[dimension]
        chunk = -(-(end - begin) // ranks)
        box[dimension] = (min(begin + place * chunk, end), min(begin + (place + 1) * chunk, end))
    return tuple(box)


def intersect(one: Box, other: Box) -> Box | None:
    """Return what two boxes of a tensor share; None if nothing."""
    shared = tuple(
        (max(left[0], right[0]), min(left[1], right[1]))
        for left, right in zip(one, other, strict=True)
    )
    return None if any(begin >= end for begin, end in shared) else shared


def plan_moves(
    wanted: Sequence[Boxes],
    held: Mapping[int, Boxes],
    holders: Mapping[int, int],
    partial: Collection[str] = (),
) -> list[Move]:
    """Return the moves that give every rank what it wants, in an order that all ranks follow. Of
    replicas, each taker's own gives, else the one that has given least so far.

    Args:
        wanted: by rank of this world.
        held: by rank of the earlier one, of those whose part is there. Boxes of one tensor are
            equal or apart.
        holders: by rank of the earlier world, the rank that has its part now.
        partial: tensors that some of the earlier ranks had no part of: what nobody had is of no
            move.

    Raises:
        UncoveredError: somebody wants what no part has.
    """
    given: Counter[int] = Counter()
    return [
        move
        for taker, boxes in enumerate(wanted)
        for name, box in boxes.items()
        for move in _cover(name, box, held, holders, taker, given, whole=name not in partial)
    ]


def _cover(
    name: str,
    box: Box,
    held: Mapping[int, Boxes],
    holders: Mapping[int, int],
    taker: int,
    given: Counter[int],
    *,
    whole: bool,
) -> Iterator[Move]:
    """Yield the moves for one box; `given`: by rank, the elements that it gives so far."""
    owners: dict[Box, list[int]] = {}
    for owner, boxes in sorted(held.items()):
        found = boxes.get(name)
        if found is not None:
            owners.setdefault(found, []).append(owner)
    lacking = _volume(box)
    for found, alike in owners.items():
        if len(found) == len(box) and (shared := intersect(box, found)) is not None:
            owner = min(alike, key=lambda one: (holders[one] != taker, given[holders[one]], one))
            if holders[owner] != taker:
                given[holders[owner]] += _volume(shared)
            lacking -= _volume(shared)
            yield Move(name, shared, owner, holders[owner], taker)
    if lacking and whole:
        raise UncoveredError(
            f"{name}: expected the earlier parts to hold {box}, found {sorted(owners)}"
        )


def _volume(box: Box) -> int:
    volume = 1
    for begin, end in box:
        volume *= end - begin
    return volume
