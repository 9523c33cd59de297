"""A column's memory, which grows where it is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from elastic_trainer.embeddings.column import Column


def test_a_column_that_somebody_keeps_stays_as_it_is_and_says_so() -> None:
    column = Column(np.int64, 2)
    column.grow(3)
    column.numbers[:] = 7
    kept = column.numbers
    with pytest.raises(BufferError, match="to 10000 rows, views found: 1;"):
        column.grow(10_000)
    assert column.numbers.tolist() == kept.tolist() == [[7, 7]] * 3


def test_a_column_waits_for_whoever_only_looks_at_it() -> None:
    column = Column(np.int64)
    column.grow(2)
    column.numbers[:] = 7
    kept = [column.numbers]
    threading.Timer(0.02, kept.clear).start()
    column.grow(10_000)
    assert column.numbers[:3].tolist() == [7, 7, 0] and len(column.numbers) == 10_000
