"""Threads beside the training's own come after what it has given the GPU."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.messages import Messages
from elastic_trainer.feed.likeness import likenesses
from elastic_trainer.ranks.stream import in_callers_stream
from elastic_trainer.store.blob import lay_out
from torch.distributed import HashStore

from tests.elastic_trainer.ranks.gpu_streams import Gpus, stand_in


def test_a_thread_has_the_stream_that_its_caller_had_as_it_was_begun() -> None:
    gpus = Gpus(used=True)

    def count() -> int:
        return len(gpus.taken)

    run = in_callers_stream(count, gpus)
    gpus.stream = "a later one"
    assert gpus.taken == {}, "the caller keeps its own"
    assert run() == 1, "before anything is given to the GPU"
    assert gpus.taken == {threading.current_thread().name: "the caller's"}


def test_nothing_is_asked_of_cuda_where_it_isnt_used() -> None:
    def count() -> int:
        return 7

    assert in_callers_stream(count, Gpus(used=False)) is count


def test_a_states_digests_are_made_in_its_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = stand_in(monkeypatch)
    assert len(likenesses(lay_out([torch.ones(3)]))) == 1
    assert set(gpus.taken.values()) == {"the caller's"}
    assert threading.current_thread().name not in gpus.taken


def test_a_state_is_handed_over_in_its_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = stand_in(monkeypatch)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        thread = Messages(lambda _: None).run(
            lambda: threading.current_thread().name, lambda: False
        )
    finally:
        dist.destroy_process_group()
    assert gpus.taken == {thread: "the caller's"}
