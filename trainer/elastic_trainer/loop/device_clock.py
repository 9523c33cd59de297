"""DeviceClock: BatchClock's times for a model on a device, whose work goes on after the pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MOST_PENDING = 64
"""Batches whose marks the device may not have come to yet; of more, the oldest isn't measured."""


class Mark(Protocol):
    """A place in a device's work; torch.Event is one."""

    def query(self) -> bool:
        """Return whether the device has come there."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds from here to `end`, both of which it has come to."""


@dataclass(frozen=True, slots=True)
class _Batch:
    began: Mark
    computed: Mark
    ended: Mark
    passed: Mark
    samples: int


class DeviceClock:
    """Marks in the device's own work what BatchClock takes the time of, and reads the times once
    the device has come there: nobody waits for it.

    DistributedDataParallel has the device wait for the others' gradients after the last of its own,
    so that wait lies between two marks as it does on a CPU.

    Args:
        parameters: that are trained; the last one's gradient tells of the pass.
        mark: notes a place in what the device was given to do so far.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], mark: Callable[[], Mark]) -> None:
        self._mark = mark
        self._began: Mark | None = None
        self._computed: Mark | None = None
        self._ended: Mark | None = None
        self._samples = 0
        self._pending: deque[_Batch] = deque(maxlen=MOST_PENDING)
        self._engine = torch.autograd.Variable._execution_engine
        parameters[-1].register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """A batch is handed out."""
        self._computed = self._ended = None
        self._began = self._mark()

    def end(self, samples: int) -> None:
        """Its body has ended, and was of so many samples of this rank."""
        if self._computed is not None:
            self._ended, self._samples = self._mark(), samples

    def passed(self) -> None:
        """The next batch is asked for."""
        if self._began is not None and self._computed is not None and self._ended is not None:
            marks = self._began, self._computed, self._ended, self._mark()
            self._pending.append(_Batch(*marks, self._samples))

    def take(self) -> tuple[int, int, int, int]:
        """Return what was measured since this was last asked, of batches that the device has done:
        nanoseconds of work, nanoseconds of waiting for others' gradients, batches, and samples."""
        compute = network = 0.0
        batches = samples = 0
        while self._pending and self._pending[0].passed.query():
            one = self._pending.popleft()
            compute += one.began.elapsed_time(one.computed) + one.ended.elapsed_time(one.passed)
            network += one.computed.elapsed_time(one.ended)
            batches, samples = batches + 1, samples + one.samples
        return int(compute * 1e6), int(network * 1e6), batches, samples

    def _on_gradient(self, _: torch.Tensor) -> None:
        self._engine.queue_callback(self._on_computed)

    def _on_computed(self) -> None:
        self._computed = self._mark()


def mark_on(device: torch.device) -> Callable[[], Mark] | None:
    """Return what marks places in a device's work; None where it can't be timed."""

    def mark() -> Mark:
        event = torch.Event(device=device, enable_timing=True)
        # Else it would be recorded on the current GPU, which need not be the model's.
        event.record(torch.accelerator.current_stream(device))
        return event

    try:
        mark()
    except (RuntimeError, NotImplementedError):
        return None
    return mark
