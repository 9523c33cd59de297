"""Threads beside the training's own come after what it has given the GPU."""

from __future__ import annotations

from elastic_trainer.ranks.stream import in_callers_stream


class Gpus:
    """Stands for torch.cuda: the current stream of each thread, as far as one was set."""

    def __init__(self, *, used: bool) -> None:
        self.used = used
        self.stream = "the caller's"
        self.taken: list[str] = []

    def is_initialized(self) -> bool:
        return self.used

    def current_stream(self) -> str:
        assert self.used, "asked, torch would initialise CUDA"
        return self.stream

    def set_stream(self, stream: str) -> None:
        self.taken.append(stream)


def test_a_thread_has_the_stream_that_its_caller_had_as_it_was_begun() -> None:
    gpus = Gpus(used=True)

    def count() -> int:
        return len(gpus.taken)

    run = in_callers_stream(count, gpus)
    gpus.stream = "a later one"
    assert gpus.taken == [], "the caller keeps its own"
    assert run() == 1, "before anything is given to the GPU"
    assert gpus.taken == ["the caller's"]


def test_nothing_is_asked_of_cuda_where_it_isnt_used() -> None:
    def count() -> int:
        return 7

    assert in_callers_stream(count, Gpus(used=False)) is count
