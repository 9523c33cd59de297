"""Memory of frames is used again once nobody refers to it, and not before."""

from __future__ import annotations

import gc

from elastic_trainer.feed.buffers import Buffers

SIZE = 1 << 16


def test_memory_is_used_again_once_nobody_has_it() -> None:
    buffers = Buffers()
    first = buffers.take(SIZE)
    place = first.data_ptr()
    part = first[100:]
    del first
    gc.collect()
    other = buffers.take(SIZE)
    assert other.data_ptr() != place  # a part of it is still referred to
    del part
    gc.collect()
    assert buffers.take(SIZE - 100).data_ptr() == place


def test_what_was_prepared_is_there() -> None:
    buffers = Buffers()
    buffers.prepare(SIZE)
    assert len(buffers._spare) == 1
    taken = buffers.take(SIZE)
    assert len(taken) == SIZE and not buffers._spare
    del taken
    gc.collect()
    assert len(buffers._spare) == 1
    buffers.clear()
    assert not buffers._spare
