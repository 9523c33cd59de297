"""Advice on shorter steps, by the measured split of a batch's time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.brain.estimate.step_time import (
    FULL,
    BatchTime,
    batch_size,
    loader_workers,
)

seconds = st.integers(0, 100_000).map(lambda milliseconds: milliseconds / 1000)
times = st.builds(BatchTime, seconds, seconds, seconds)


@pytest.mark.parametrize(
    ("time", "now", "then", "speedup"),
    [
        (BatchTime(0.2, 0.2, 0.0), 2, 5, 2.0),
        (BatchTime(0.1, 0.1, 0.1), 4, 7, 1.5),
        (BatchTime(0.2, 0.3, 0.0), 0, 2, 2.5),
        (BatchTime(0.9, 0.1, 0.0), 8, 11, 10 / 9),
    ],
    ids=["half of it is waiting", "gradients come meanwhile", "in the process itself", "a tenth"],
)
def test_loaders_that_keep_ranks_waiting_become_as_many_as_hide_it(
    time: BatchTime, now: int, then: int, speedup: float
) -> None:
    found = loader_workers(time, now)
    assert found is not None and (found.now, found.then) == (now, then)
    assert found.speedup == pytest.approx(speedup)


def test_who_hardly_waits_is_told_nothing_and_who_says_no_number_a_factor() -> None:
    assert loader_workers(BatchTime(0.97, 0.03, 0.0), 2) is None
    assert loader_workers(BatchTime(0.0, 0.0, 0.0), 2) is None
    found = loader_workers(BatchTime(0.2, 0.2, 0.0), None)
    assert found is not None and (found.then, found.factor) == (None, pytest.approx(2.3))


@given(times, st.none() | st.integers(0, 64))
def test_more_loaders_are_more_and_never_slower(time: BatchTime, now: int | None) -> None:
    found = loader_workers(time, now)
    if found is None:
        return
    assert found.speedup > 1
    assert now is None or (found.then is not None and found.then > now)


@pytest.mark.parametrize(
    ("batches", "memory", "factor"),
    [(4, 0.2, 4), (4, 0.3, 2), (4, 0.5, 1), (6, 0.1, 2), (1, 0.1, 1), (8, 0.05, 8), (8, None, 1)],
)
def test_batches_grow_as_far_as_a_step_has_several_and_memory_holds_them(
    batches: int, memory: float | None, factor: int
) -> None:
    found = batch_size(BatchTime(0.1, 0.0, 0.1), batches, 32, memory)
    if factor == 1:
        assert found is None
        return
    assert found is not None and (found.then, found.factor) == (32 * factor, factor)
    assert found.speedup == pytest.approx(0.2 / (0.1 + 0.1 / factor))


@given(times, st.integers(1, 1000), st.floats(0.001, 1))
def test_the_global_batch_stays_and_memory_suffices(
    time: BatchTime, batches: int, memory: float
) -> None:
    found = batch_size(time, batches, 16, memory)
    if found is not None:
        assert batches % found.factor == 0
        assert found.factor * memory <= FULL
        assert 1 < found.speedup <= found.factor
