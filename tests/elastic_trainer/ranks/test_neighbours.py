"""Whom a rank of a large world is connected to: elastic_trainer/ranks/neighbours.py."""

from __future__ import annotations

import os

import pytest
from elastic_trainer.ranks.neighbours import (
    FULL_MESH_RANKS,
    FULL_MESH_VARIABLE,
    connecting_when_used,
    full_mesh_ranks,
    neighbours,
)
from hypothesis import given
from hypothesis import strategies as st

worlds = st.integers(1, 5000)


@given(worlds, st.data())
def test_two_ranks_know_of_one_another_and_a_rank_knows_few(
    world: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world - 1))
    around = neighbours(rank, world)
    assert rank not in around
    assert all(rank in neighbours(peer, world) for peer in around)
    assert len(around) <= 2 * (world - 1).bit_length()
    assert len(around) == len(neighbours(0, world)), "all ranks send and take equally many messages"


@given(worlds, st.data())
def test_rings_barriers_and_trees_from_any_root_are_among_neighbours(
    world: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world - 1))
    root = data.draw(st.integers(0, world - 1))
    distance = (rank - root) % world
    talked_to = {(rank + 1) % world, (rank - 1) % world}  # ring
    for bit in range((world - 1).bit_length()):
        talked_to |= {(rank + (1 << bit)) % world, (rank - (1 << bit)) % world}  # barrier
        other = distance ^ (1 << bit)
        if distance % (1 << bit) == 0 and other < world:
            talked_to.add((root + other) % world)  # binomial tree
    assert talked_to - {rank} <= set(neighbours(rank, world))


def test_the_number_is_settable_and_nonsense_is_refused() -> None:
    assert full_mesh_ranks({}) == FULL_MESH_RANKS
    assert full_mesh_ranks({FULL_MESH_VARIABLE: "0"}) == 0
    for text in ("many", "-1", "1.5"):
        with pytest.raises(ValueError, match=FULL_MESH_VARIABLE):
            full_mesh_ranks({FULL_MESH_VARIABLE: text})


def test_a_users_own_setting_for_other_groups_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_GLOO_LAZY_INIT"
    for before in ("0", None):
        monkeypatch.delenv(name, raising=False)
        if before is not None:
            monkeypatch.setenv(name, before)
        with connecting_when_used():
            assert os.environ[name] == "1"
        assert os.environ.get(name) == before
