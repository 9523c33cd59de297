"""BatchClock tells a rank's own work from its waiting for others."""

from __future__ import annotations

from typing import Any

import torch
from elastic_trainer.loop.batch_clock import BatchClock


class Clock:
    """Passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


class Layer(torch.nn.Module):
    """Doubles, and takes time for its backward pass."""

    def __init__(self, clock: Clock, nanoseconds: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                clock.now += nanoseconds
                return gradients[0] * 2

        self._slow = Slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._slow.apply(x * self.weight)
        return found


def test_the_wait_that_ends_a_backward_pass_is_no_work() -> None:
    clock = Clock()
    layers = [Layer(clock, nanoseconds) for nanoseconds in (3, 4, 5)]
    net = torch.nn.Sequential(*layers)
    found = BatchClock(list(net.parameters()), clock)

    def wait() -> None:
        clock.now += 100

    # As DistributedDataParallel does, once it has the last gradient.
    engine = torch.autograd.Variable._execution_engine
    layers[0].weight.register_post_accumulate_grad_hook(lambda _: engine.queue_callback(wait))
    for _ in range(2):
        found.begin()
        clock.now += 20
        net(torch.ones(1)).sum().backward()
        clock.now += 1
        found.end(samples=7)
        clock.now += 50
        found.passed()
    assert found.take() == (2 * (20 + 3 + 4 + 5 + 50), 2 * 101, 2, 14)
    assert found.take() == (0, 0, 0, 0)


def test_a_batch_without_a_backward_pass_is_not_measured() -> None:
    clock = Clock()
    net = torch.nn.Linear(1, 1)
    found = BatchClock(list(net.parameters()), clock)
    found.begin()
    clock.now += 20
    found.end(samples=7)
    found.passed()
    assert found.take() == (0, 0, 0, 0)
