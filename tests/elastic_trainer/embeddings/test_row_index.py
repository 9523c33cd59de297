"""RowIndex is a dict from id to row, whatever was removed before."""

from __future__ import annotations

import numpy as np
from elastic_trainer.embeddings.row_index import RowIndex
from hypothesis import given
from hypothesis import strategies as st

IDS = st.sets(st.integers(0, 600), max_size=200)


@given(st.lists(st.tuples(st.booleans(), IDS), max_size=12))
def test_ids_have_the_rows_that_they_were_given_last(steps: list[tuple[bool, set[int]]]) -> None:
    index, expected, row = RowIndex(), dict[int, int](), 0
    for removes, some in steps:
        if removes:
            gone = sorted(some & expected.keys())
            index.remove(np.array(gone, dtype=np.int64) * 10**12)
            for one in gone:
                del expected[one]
        else:
            new = sorted(some - expected.keys())
            rows = np.arange(row, row + len(new), dtype=np.int64)
            index.insert(np.array(new, dtype=np.int64) * 10**12, rows)
            expected |= dict(zip(new, rows.tolist(), strict=True))
            row += len(new)
        assert len(index) == len(expected)
        found = index.find(np.arange(601, dtype=np.int64) * 10**12)
        assert found.tolist() == [expected.get(one, -1) for one in range(601)]


def test_slots_of_removed_ids_are_not_kept_for_ever() -> None:
    index = RowIndex()
    for begin in range(0, 100_000, 100):
        ids = np.arange(begin, begin + 100, dtype=np.int64)
        index.insert(ids, ids)
        if begin:
            index.remove(ids - 100)
    assert len(index) == 100 and index.nbytes < 64 * 1024
