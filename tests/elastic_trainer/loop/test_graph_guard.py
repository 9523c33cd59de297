"""A CUDA graph may hold a model's work, and no collectives of a round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from elastic_trainer.loop.graph_guard import refuse_captured_collectives


class Graph:
    """Captures what is done between its beginning and its end, as torch.cuda.CUDAGraph."""

    def capture_begin(self, pool: object = None) -> None: ...

    def capture_end(self) -> None: ...


def capture(graph: Graph, work: Callable[[], object]) -> None:
    graph.capture_begin(pool=None)
    work()
    graph.capture_end()


def test_a_graph_with_collectives_is_refused_and_one_without_is_not() -> None:
    done: list[int] = []
    original = Graph.capture_begin, Graph.capture_end
    with refuse_captured_collectives(lambda: len(done), Graph):
        done.append(1)  # before, which says nothing
        capture(Graph(), lambda: None)
        with pytest.raises(RuntimeError, match="captured collectives of this round"):
            capture(Graph(), lambda: done.append(1))
        capture(Graph(), lambda: None)
    assert (Graph.capture_begin, Graph.capture_end) == original
    capture(Graph(), lambda: done.append(1))


def test_it_knows_torchs_own_graphs() -> None:
    original = torch.cuda.CUDAGraph.capture_end
    with refuse_captured_collectives(lambda: 0):
        assert torch.cuda.CUDAGraph.capture_end is not original
    assert torch.cuda.CUDAGraph.capture_end is original
