"""Refuses CUDA graphs that hold collectives of a round, which would outlive it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def refuse_captured_collectives(
    collectives: Callable[[], int], graph: type[Any] = torch.cuda.CUDAGraph
) -> Iterator[None]:
    """Watch what is captured from here on.

    A graph replays the communicator that it was captured with: after a change of the world that of
    ranks that are gone, so that it hangs, or yields what nobody has summed.

    Args:
        collectives: returns how many this process has begun.
        graph: the class whose objects capture.

    Raises:
        RuntimeError: in `capture_end`, of a graph that has captured some.
    """
    begin, end = graph.capture_begin, graph.capture_end
    before: dict[int, int] = {}

    def capture_begin(self: Any, *arguments: Any, **options: Any) -> Any:
        before[id(self)] = collectives()
        return begin(self, *arguments, **options)

    def capture_end(self: Any) -> Any:
        ended = end(self)
        if collectives() != before.pop(id(self), collectives()):
            raise RuntimeError(
                "a CUDA graph has captured collectives of this round, and would go on with them "
                "when ranks come and go: expected graphs of the model alone, as by "
                "torch.compile(net, mode='reduce-overhead') or torch.cuda.make_graphed_callables "
                "on what ElasticLoop is given as model=, with loop.model's wrapping outside"
            )
        return ended

    graph.capture_begin, graph.capture_end = capture_begin, capture_end
    try:
        yield
    finally:
        graph.capture_begin, graph.capture_end = begin, end
