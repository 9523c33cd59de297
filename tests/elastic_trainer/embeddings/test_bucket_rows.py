"""BucketRows is a dict from id to what is in its row, whatever was added or removed before."""

from __future__ import annotations

import copy

import numpy as np
from elastic_trainer.embeddings.bucket_rows import NO_ROW, BucketRows
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from hypothesis import given
from hypothesis import strategies as st

CANDIDATES = np.arange(400_000, dtype=np.int64)
FEW = np.sort(buckets(np.array([-1, 0])))
CROWDED = np.r_[-1, 0, CANDIDATES[np.isin(buckets(CANDIDATES), FEW)][1:599]]
"""All are of two buckets, so that their slots are fought for."""
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "drop", "copy"]), st.sets(st.integers(0, 599))),
    max_size=12,
)


@given(STEPS)
def test_ids_have_what_was_last_written_in_their_rows(steps: list[tuple[str, set[int]]]) -> None:
    rows, expected = BucketRows(value=(np.int64, None), pair=(np.float32, 2)), dict[int, int]()
    for number, (kind, some) in enumerate(steps):
        ids = CROWDED[sorted(some)]
        if kind == "put":
            at = rows.put(ids)
            rows.columns["value"].numbers[at] = ids + number
            rows.columns["pair"].numbers[at] = (ids + number)[:, None]
            expected |= dict(zip(ids.tolist(), (ids + number).tolist(), strict=True))
        elif kind == "remove":
            gone = ids[rows.find(ids) != NO_ROW]
            rows.remove(gone)
            expected = {one: value for one, value in expected.items() if one not in gone}
        elif kind == "drop":
            given_away = FEW[len(some) % 2 :]
            rows.drop(given_away)
            expected = {
                one: value
                for one, value in expected.items()
                if int(buckets(np.array([one]))[0]) not in given_away
            }
        else:
            old, rows = rows, copy.deepcopy(rows)
            old.columns["value"].numbers[:] = -7  # which the copy has none of
        assert len(rows) == len(expected)
        found = rows.find(CROWDED)
        here = found != NO_ROW
        assert CROWDED[here].tolist() == sorted(expected)
        values = [expected[one] for one in CROWDED[here].tolist()]
        assert rows.columns["value"].numbers[found[here]].tolist() == values
        assert rows.columns["pair"].numbers[found[here]].tolist() == [[one] * 2 for one in values]
        assert sorted(rows.ids(rows.rows()).tolist()) == sorted(expected)
        first = rows.ids(rows.rows(FEW[::-1]))
        assert buckets(first).tolist() == sorted(buckets(first).tolist(), reverse=True)


ANY_ID = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, 1])


@given(st.lists(st.lists(ANY_ID, unique=True, max_size=20), max_size=6))
def test_rows_of_any_ids_are_their_own(batches: list[list[int]]) -> None:
    rows = BucketRows()
    known = set()
    for batch in batches:
        known |= set(batch)
        assert len(set(rows.put(np.array(batch, dtype=np.int64)).tolist())) == len(batch)
    asked = np.array([*sorted(known), *({-(2**63), -1, 0, 1, 2**63 - 1} - known)], dtype=np.int64)
    found = rows.find(asked)
    assert rows.ids(found[: len(known)]).tolist() == sorted(known)
    assert (found[len(known) :] == NO_ROW).all() and len(rows) == len(known)


def test_ids_of_all_buckets_are_found() -> None:
    rows = BucketRows(value=(np.int64, None))
    for part in np.array_split(CANDIDATES, 9):
        at = rows.add(part)
        rows.columns["value"].numbers[at] = part
    assert np.array_equal(rows.columns["value"].numbers[rows.find(CANDIDATES)], CANDIDATES)
    assert (rows.find(CANDIDATES + 2**40) == NO_ROW).all()


def test_slots_of_removed_ids_are_not_kept_for_ever() -> None:
    rows = BucketRows(value=(np.int64, None))
    for begin in range(0, 100_000, 100):
        ids = np.arange(begin, begin + 100, dtype=np.int64)
        rows.add(ids)
        if begin:
            rows.remove(ids - 100)
    assert len(rows) == 100 and rows.nbytes < 300_000


def test_dropped_buckets_take_no_memory() -> None:
    rows = BucketRows(value=(np.float32, 64))
    rows.add(CANDIDATES)
    rows.columns["value"].numbers[rows.rows()] = 1
    rows.drop(np.arange(BUCKETS))
    assert len(rows) == rows.nbytes == 0
    at = rows.add(CANDIDATES[:9])
    assert not rows.columns["value"].numbers[at].any()
