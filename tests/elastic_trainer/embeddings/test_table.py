"""A table's rows: admitted, updated, evicted, moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.row_optimizer import SGD, Adagrad, RowOptimizer
from elastic_trainer.embeddings.table import Entries, Table, TableSettings
from hypothesis import given
from hypothesis import strategies as st

RATE = 0.5


ADAGRAD = Adagrad(lr=RATE)


def table(optimizer: RowOptimizer = ADAGRAD, **given: Any) -> Table:
    return Table(TableSettings("items", 4, optimizer, dtype=torch.float64, **given))


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def train(one: Table, *numbers: int, seen: int = 1, gradient: float = 1.0) -> None:
    unique = np.unique(ids(*numbers))
    gradients = torch.full((len(unique), 4), gradient, dtype=torch.float64)
    one.update(unique, np.full(len(unique), seen), gradients, RATE)


def test_asking_makes_no_rows() -> None:
    one = table()
    first = one.pull(ids(5, 2**62))
    assert len(one) == 0
    assert torch.equal(one.pull(ids(2**62, 5)), first.flip(0))


def test_a_new_row_takes_the_gradient_of_its_first_step() -> None:
    one = table(SGD(lr=RATE))
    before = one.pull(ids(7))
    train(one, 7)
    assert len(one) == 1
    torch.testing.assert_close(one.pull(ids(7)), before - RATE)


def test_an_id_gets_a_row_when_it_was_seen_often_enough() -> None:
    one = table(SGD(lr=RATE), admit_after=3)
    before = one.pull(ids(7))
    train(one, 7)
    train(one, 8, seen=2)
    assert len(one) == 0
    assert torch.equal(one.pull(ids(7)), before)  # gradients before that are dropped
    train(one, 7, seen=2)
    assert len(one) == 1
    torch.testing.assert_close(one.pull(ids(7)), before - RATE)
    assert one.entries().seen.tolist() == [3]
    assert one.entries().candidates.tolist() == [8]


def test_a_row_that_comes_back_begins_anew_with_its_optimizer_state() -> None:
    one = table(evict_idle=2, evict_every=1, admit_after=2)
    first = one.pull(ids(7))
    train(one, 7, seen=2)
    after_one = one.pull(ids(7))
    train(one, 7)
    for _ in range(3):
        train(one, 9, seen=2)
    assert one.entries().ids.tolist() == [9]
    assert torch.equal(one.pull(ids(7)), first)
    train(one, 7)  # once is not enough any more
    assert torch.equal(one.pull(ids(7)), first)
    train(one, 7)
    assert torch.equal(one.pull(ids(7)), after_one)
    assert (one.counters.admitted, one.counters.evicted) == (3, 1)


def test_candidates_are_forgotten_too() -> None:
    one = table(evict_idle=2, evict_every=1, admit_after=2)
    train(one, 7)
    for _ in range(3):
        train(one, 9)
    train(one, 7)
    assert one.entries().ids.tolist() == [9]


def test_a_full_bucket_keeps_what_is_seen_most() -> None:
    one = table(max_rows=2 * BUCKETS, evict_every=4)
    same = np.flatnonzero(buckets(np.arange(20_000, dtype=np.int64)) == 16)[:4]
    a, b, c, d = (int(number) for number in same)
    train(one, a, b, c, d)
    train(one, b, d)
    train(one, b)
    assert len(one) == 4
    train(one, c)  # now c and d were seen twice, c last
    assert one.entries().ids.tolist() == sorted([b, c])


def test_each_bucket_is_looked_through_once_in_so_many_steps() -> None:
    one = table(evict_idle=1, evict_every=8)
    train(one, *range(3000))
    sizes = []
    for _ in range(9):
        train(one, -1)
        sizes.append(len(one))
    assert sizes[0] == 3001, "rows that were just seen are idle for one step"
    assert sizes[-1] == 1 and len(set(sizes)) == 9
    assert max(np.abs(np.diff(sizes))) < 2 * 3000 / 8


def test_rows_that_were_given_back_are_used_again() -> None:
    one = table(evict_idle=1, evict_every=1)
    train(one, *range(1000))
    size = one.nbytes
    for start in range(1000, 20_000, 500):
        train(one, *range(start, start + 500))
    assert len(one) == 1000
    assert one.nbytes < 2 * size


UPDATES = st.lists(
    st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True), st.floats(-1, 1)),
    max_size=25,
)


@given(UPDATES, st.integers(1, 6), st.integers(0, 2**32))
def test_however_buckets_move_between_holders_their_rows_end_alike(
    updates: list[tuple[list[int], float]], holders: int, seed: int
) -> None:
    settings = {"admit_after": 2, "evict_idle": 6, "evict_every": 5, "max_rows": BUCKETS}
    whole = table(**settings)
    parts = [table(**settings) for _ in range(holders)]
    random = np.random.default_rng(seed)
    owners = random.integers(0, holders, BUCKETS)
    for numbers, gradient in updates:
        train(whole, *numbers, gradient=gradient)
        owner = owners[buckets(ids(*numbers))]
        for holder, part in enumerate(parts):
            train(part, *(ids(*numbers)[owner == holder].tolist()), gradient=gradient)
        bucket, target = int(random.integers(BUCKETS)), int(random.integers(holders))
        moving = {bucket, *buckets(ids(*numbers)).tolist()}
        for holder, part in enumerate(parts):
            given_away = {one for one in moving if owners[one] == holder} - (
                moving if holder == target else set()
            )
            parts[target].copy(part, given_away)
            part.drop(given_away)
        owners[list(moving)] = target
    together = table(**settings)
    for part in parts:
        together.put(part.entries())
    for found, expected in zip(
        together.entries().tensors(), whole.entries().tensors(), strict=True
    ):
        assert torch.equal(found, expected)


def test_a_bucket_is_not_taken_twice() -> None:
    one = table()
    train(one, 7)
    with pytest.raises(ValueError, match="id 7 of table 'items' is held here already"):
        one.put(one.entries())


def test_entries_of_nothing_are_empty() -> None:
    one = table()
    assert isinstance(one.entries(), Entries)
    assert all(not len(part) for part in one.entries().tensors())
    one.put(one.entries())
    one.drop([1, 2])
    assert len(one) == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"admit_after": 0}, "admit_after of table 'items' is 0: expected 1 or more"),
        ({"max_rows": -1}, "max_rows of table 'items' is -1"),
        ({"evict_idle": True}, "evict_idle of table 'items' is True"),
        ({"evict_every": None}, "evict_every of table 'items' is None"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        table(**given)


def test_other_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(TypeError, match=r"optimizer is a SGD: expected one of .*row_optimizer"):
        TableSettings("a", 4, torch.optim.SGD([torch.zeros(1)], lr=1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dtype is torch.float16"):
        TableSettings("a", 4, SGD(), dtype=torch.float16)
    with pytest.raises(ValueError, match="a table without a name"):
        TableSettings("", 4, SGD())
    with pytest.raises(ValueError, match="lr is -1"):
        SGD(lr=-1)
