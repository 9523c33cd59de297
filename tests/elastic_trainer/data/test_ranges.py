"""Sets of positions, and their cuts into leases."""

from __future__ import annotations

import pytest
from elastic_trainer.shards.ranges import Ranges
from elastic_trainer.shards.shards import Shards
from hypothesis import given
from hypothesis import strategies as st

positions = st.frozensets(st.integers(0, 30))


def ranges(found: frozenset[int]) -> Ranges:
    return Ranges.union((at, at + 1) for at in found)


def members(of: Ranges) -> frozenset[int]:
    return frozenset(at for start, stop in of for at in range(start, stop))


@given(positions, positions)
def test_ranges_are_sets(one: frozenset[int], other: frozenset[int]) -> None:
    a, b = ranges(one), ranges(other)
    assert members(a) == one and len(a) == len(one) and bool(a) == bool(one)
    assert a | b == ranges(one | other)
    assert a & b == ranges(one & other)
    assert a - b == ranges(one - other)
    assert members(a.near(b)) >= one & other
    assert members(Ranges.of(0, a.below)) <= one


def test_impossible_bounds_are_refused() -> None:
    for bounds in ((3, 3), (1, 4, 2, 6), (1,)):
        with pytest.raises(ValueError, match="expected an even number of ascending bounds"):
            Ranges(bounds)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 9), positions)
def test_cuts_are_whole_on_a_grid_and_within_an_epoch(
    samples: int, epochs: int, size: int, found: frozenset[int]
) -> None:
    shards = Shards(samples, epochs, size)
    given = ranges(found) & shards.all
    cuts = list(shards.cut(given))
    assert Ranges.union(cuts) == given
    assert sum(stop - start for start, stop in cuts) == len(given)
    for start, stop in cuts:
        assert 0 < stop - start <= size
        assert shards.epoch(start) == shards.epoch(stop - 1)
        assert start % samples // size == (stop - 1) % samples // size
