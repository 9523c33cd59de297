"""A column's memory, which grows where it is."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import sys
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


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14),
    reason="Linux takes memory at once from 5.14 on",
)
def test_memory_that_is_taken_at_once_keeps_what_is_there_and_costs_no_page_faults() -> None:
    column = Column(np.int64)
    rows = 64 * mmap.PAGESIZE // column.row_bytes
    column.grow(2 * rows)
    column.numbers[:10] = 7
    column.take_memory(1, rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    column.numbers[10:rows] = 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 32
    assert column.numbers[:11].tolist() == [7] * 10 + [8] and not column.numbers[rows:].any()


def test_a_column_waits_for_whoever_only_looks_at_it() -> None:
    column = Column(np.int64)
    column.grow(2)
    column.numbers[:] = 7
    kept = [column.numbers]
    threading.Timer(0.02, kept.clear).start()
    column.grow(10_000)
    assert column.numbers[:3].tolist() == [7, 7, 0] and len(column.numbers) == 10_000


def test_an_error_that_is_kept_while_a_column_is_made_keeps_none_of_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error of an object that is collected just then has the frame that was running."""
    kept: list[object] = []
    frames: set[str] = set()
    monkeypatch.setattr(sys, "unraisablehook", lambda error: kept.append(error.exc_value))

    class Broken:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            frames.add(sys._getframe(1).f_code.co_name)
            raise ValueError

    threshold = gc.get_threshold()
    try:
        for allocations in range(30):
            gc.disable()
            Broken()
            gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
            gc.enable()
            column = Column(np.int64)
            gc.disable()
            column.grow(10)
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
    assert "_show" in frames and kept
