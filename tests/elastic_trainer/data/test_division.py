"""Uneven division of a step: nothing lost or repeated, and the same gradient."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from elastic_trainer.data.cursor import Cursor
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.division import EVEN, FULL, Division
from elastic_trainer.ranks.process_group import ProcessGroup
from hypothesis import given
from hypothesis import strategies as st

WORLDS = st.integers(1, 9)


@st.composite
def divisions(draw: st.DrawFn, world: int) -> Division:
    shares = draw(st.dictionaries(st.integers(0, world - 1), st.integers(1, FULL - 1)))
    return Division(tuple(sorted(shares.items())))


@given(st.data(), WORLDS, st.integers(1, 10**6))
def test_the_parts_of_a_step_are_the_step_and_each_is_its_share_rounded(
    data: st.DataObject, world: int, taken: int
) -> None:
    division = data.draw(divisions(world))
    assert Division.decode(division.encode()) == division
    shares = {**dict.fromkeys(range(world), FULL), **dict(division.reduced)}
    end = 0
    for rank in range(world):
        start, stop = division.bounds(rank, taken, world)
        assert start == end and stop >= start
        ideal = taken * shares[rank] / sum(shares.values())
        assert abs(stop - start - ideal) < 1 + 1e-9
        assert stop - start <= division.largest(taken, world)
        end = stop
    assert end == taken


@given(WORLDS, st.integers(1, 1000))
def test_where_nothing_is_said_parts_differ_by_one_sample_at_most(world: int, taken: int) -> None:
    sizes = [stop - start for start, stop in (EVEN.bounds(r, taken, world) for r in range(world))]
    assert sum(sizes) == taken and max(sizes) - min(sizes) <= 1
    assert EVEN.largest(taken, world) == max(sizes)


@given(st.data(), WORLDS, st.integers(1, 40), st.integers(1, 7))
def test_the_gradient_is_that_of_the_even_division(
    data: st.DataObject, world: int, taken: int, most: int
) -> None:
    division = data.draw(divisions(world))
    inputs = torch.randn(taken, 5, dtype=torch.float64)

    def gradient(division: Division) -> torch.Tensor:
        weights = torch.ones(5, dtype=torch.float64, requires_grad=True)
        parts = set()
        for rank in range(world):
            share = Cursor().share(rank, samples=taken, batch=taken, world=world, division=division)
            batches = share.micro_batches(most)
            parts.add(len(batches))
            for batch in batches:
                own = inputs[batch.start : batch.stop] if batch.samples else inputs[:1]
                assert len(own) <= most
                # DistributedDataParallel's average over the ranks.
                (batch.weight * (own @ weights).pow(2).mean() / world).backward()
        assert len(parts) == 1, "each forward pass may communicate"
        assert weights.grad is not None
        return weights.grad

    assert torch.allclose(gradient(division), gradient(EVEN), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("loaders", [0, pytest.param(1, marks=pytest.mark.process)])
def test_a_dataset_hands_out_each_sample_once_and_a_new_world_begins_evenly(loaders: int) -> None:
    dataset, world = list(range(103)), 3
    division = Division(((1, 400),))
    ranks = [
        ElasticDataset(
            dataset,
            batch_size=9,
            global_batch=12,
            epochs=2,
            group=ProcessGroup(rank, world),
            num_workers=loaders,
        )
        for rank in range(world)
    ]
    taken: list[list[int]] = []
    for data in ranks:
        data.regroup(ProcessGroup(ranks.index(data), world))
        data.divide(division)
        taken.append([])
        for batch in data:
            if data.weight:
                taken[-1] += batch.tolist()
            if data.last:
                data.applied()
    assert sorted(chain(*taken)) == sorted(2 * dataset)
    assert len(taken[1]) < 0.6 * len(taken[0])
    ranks[0].regroup(ProcessGroup(0, 2))
    assert ranks[0].division == EVEN


@pytest.mark.parametrize("text", ["1", "a=3", "1=", "=4", "1=2=3"])
def test_what_is_no_division_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="int"):
        Division.decode(text)
