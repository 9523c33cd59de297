"""Memory of frames is used again once nobody refers to it, and not before."""

from __future__ import annotations

import gc
import threading

from elastic_trainer.feed.buffers import Buffers, Bytes

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
    assert len(buffers._spare) == 1 and buffers.spare(SIZE)
    taken = buffers.take(SIZE)
    assert not buffers.spare(SIZE)
    assert len(taken) == SIZE and not buffers._spare
    del taken
    gc.collect()
    assert len(buffers._spare) == 1
    buffers.clear()
    assert not buffers._spare


def test_what_comes_back_later_is_not_kept_once_nobody_follows() -> None:
    buffers = Buffers()
    taken = buffers.take(SIZE)
    buffers.clear()
    del taken
    gc.collect()
    assert not buffers._spare
    buffers.prepare(SIZE)
    assert len(buffers._spare) == 1


def test_memory_may_come_back_in_the_midst_of_a_call() -> None:
    buffers = Buffers()
    taken = [buffers.take(SIZE)]

    def collect() -> None:  # as a collection of garbage does, at any allocation
        with buffers._lock:
            taken.clear()
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive() and len(buffers._spare) == 1


def test_memory_that_nobody_needs_any_more_is_not_made() -> None:
    class Cleared(Buffers):
        made = 0

        def _back(self, whole: Bytes) -> None:
            self.made += 1
            self.clear()

    buffers = Cleared()
    buffers.prepare(SIZE, SIZE, SIZE)
    assert buffers.made == 1
    assert buffers.seconds_left() == 0.0
