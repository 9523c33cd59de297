"""A sharded state goes from any world into any other, piece by piece."""

from __future__ import annotations

import math

import pytest
import torch
from elastic_trainer.checkpoint.recovery import Available, Part, Source, choose_recovery_source
from elastic_trainer.checkpoint.replicas import number_parts
from elastic_trainer.checkpoint.reshard import UncoveredError, plan_moves, shard_box
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh


def _coordinates(mesh: tuple[int, ...]) -> list[list[int]]:
    ranks = torch.arange(math.prod(mesh)).reshape(mesh)
    return [torch.nonzero(ranks == rank)[0].tolist() for rank in range(math.prod(mesh))]


@pytest.mark.parametrize("size", [0, 1, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_shard_is_what_torch_chunk_gives(size: int, ranks: int) -> None:
    whole = torch.arange(size * 3).reshape(size, 3)
    chunks = [*whole.chunk(ranks), *[whole[:0]] * ranks]
    for rank in range(ranks):
        (begin, end), columns = shard_box((size, 3), [0], [ranks], [rank])
        assert torch.equal(whole[begin:end], chunks[rank]) and columns == (0, 3)


_MESHES = st.sampled_from([(1,), (2,), (3,), (5,), (2, 2), (2, 3), (3, 2)])


@given(st.data())
def test_every_rank_gets_all_it_wants_once_and_from_who_has_it(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    worlds = []
    for _ in range(2):
        mesh = data.draw(_MESHES)
        placements = [data.draw(st.integers(-1, len(shape) - 1)) for _ in mesh]
        worlds.append([shard_box(shape, placements, mesh, one) for one in _coordinates(mesh)])
    before, now = worlds
    there = [rank for rank, box in enumerate(before) if rank == before.index(box)]
    there += [rank for rank in range(len(before)) if rank not in there and data.draw(st.booleans())]
    holders = {rank: data.draw(st.integers(0, len(now) - 1)) for rank in there}
    held = {rank: {"w": before[rank]} for rank in there}
    moves = plan_moves([{"w": box} for box in now], held, holders)
    got = [torch.zeros(shape, dtype=torch.int64) for _ in now]
    for move in moves:
        assert move.giver == holders[move.owner]
        piece = tuple(slice(begin, end) for begin, end in move.box)
        held = torch.zeros(shape, dtype=torch.int64)
        held[tuple(slice(begin, end) for begin, end in before[move.owner])] = 1
        assert held[piece].all()
        got[move.taker][piece] += 1
    for rank, box in enumerate(now):
        wanted = torch.zeros(shape, dtype=torch.int64)
        wanted[tuple(slice(begin, end) for begin, end in box)] = 1
        assert torch.equal(got[rank], wanted)


def test_replicas_share_the_giving() -> None:
    # Four ranks hold two replicas; with two more nodes there are four, whose shards stay the same.
    halves = [((0, 3),), ((3, 6),)]
    held = {owner: {"w": halves[owner % 2]} for owner in range(4)}
    wanted = [{"w": halves[rank % 2]} for rank in range(8)]
    moves = plan_moves(wanted, held, {owner: owner for owner in range(4)})
    ways = {move.taker: move.giver for move in moves}
    assert {taker: ways[taker] for taker in range(4)} == {0: 0, 1: 1, 2: 2, 3: 3}
    assert sorted(ways[taker] for taker in range(4, 8)) == [0, 1, 2, 3]


def test_what_no_part_has_is_an_error() -> None:
    with pytest.raises(UncoveredError, match="expected the earlier parts to hold"):
        plan_moves([{"w": ((0, 4),)}], {0: {"w": ((0, 2),)}}, {0: 0})


def _has(*owners: int, step: int = 6, world: int = 3) -> Available:
    parts = tuple(("t", Part((1, step), owner, world, owner, world)) for owner in owners)
    return Available(parts=parts, training="t")


def test_another_world_takes_a_state_whose_parts_are_all_in_somebodys_memory() -> None:
    found = choose_recovery_source([_has(0, 2), _has(1, 0)], sharded=True)
    assert (found.identity, set(found.sources)) == ((1, 6), {Source.PARTS})
    assert (found.holders, found.world) == ({0: 0, 1: 1, 2: 0}, 3)


def test_parts_of_two_states_or_two_worlds_are_no_state() -> None:
    for other in (_has(1, step=9), _has(1, world=2)):
        assert choose_recovery_source([_has(0, 2), other], sharded=True).identity == (0, 0)


@pytest.mark.parametrize(
    ("ranks", "alike", "numbers"),
    [
        ([[0, 1], [2, 3]], (True, False), [0, 1, 0, 1]),
        ([[0, 1], [2, 3]], (False, True), [0, 0, 1, 1]),
        ([[0, 1], [2, 3]], (False, False), [0, 1, 2, 3]),
        ([[0, 1], [2, 3]], (True, True), [0, 0, 0, 0]),
        ([[0, 2], [1, 3]], (True, False), [0, 0, 1, 1]),
        ([[0, 1]], (True, True), [0, 1, 2, 3]),  # what the other two hold isn't known
    ],
)
def test_ranks_that_differ_in_replicated_dimensions_alone_hold_the_same(
    ranks: list[list[int]], alike: tuple[bool, ...], numbers: list[int]
) -> None:
    mesh = DeviceMesh("cpu", torch.tensor(ranks), _init_backend=False, _rank=0)
    assert number_parts([(mesh, alike)], 4) == numbers
    assert number_parts([(mesh, alike), (mesh, (False, False))], 4) == [0, 1, 2, 3]


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from("ab")),
        max_size=14,
    )
)
def test_parts_in_two_layouts_of_one_world_are_not_put_together(
    parts: list[tuple[int, int, str]],
) -> None:
    """A rank's part is another in each, and so may be that of the same number."""
    numbers = {"a": [0, 1, 0, 1], "b": [1, 0, 1, 0]}  # as a mesh's ranks are in another order
    said = [
        Available(
            parts=tuple(
                ("t", Part((1, 6), owner, 4, numbers[layout][owner], 2, layout))
                for rank, owner, layout in parts
                if rank == one
            ),
            training="t",
        )
        for one in (0, 1)
    ]
    whole = {
        layout
        for layout in "ab"
        if {numbers[layout][owner] for _, owner, found in parts if found == layout} == {0, 1}
    }
    found = choose_recovery_source(said, sharded=True)
    assert (found.identity == (1, 6)) == bool(whole)
    if whole:
        assert found.layout in whole
        held = {(rank, owner) for rank, owner, layout in parts if layout == found.layout}
        assert {(rank, owner) for owner, rank in found.holders.items()} <= held


def test_replicas_stand_in_for_one_another() -> None:
    # Of two replicas over two ranks each, rank 0 is lost, and rank 3 waits beside the world.
    def has(*owners: int) -> Available:
        parts = tuple(("t", Part((1, 6), owner, 4, owner % 2, 2)) for owner in owners)
        return Available(parts=parts, training="t")

    found = choose_recovery_source([has(1, 0), has(2, 1)], sharded=True)
    assert (found.identity, found.holders) == ((1, 6), {0: 0, 1: 1, 2: 1})
    assert choose_recovery_source([has(2), has(0)], sharded=True).identity == (0, 0)
