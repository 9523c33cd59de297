"""BatchClock: how long this rank works on its batches by itself, without waiting for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns

import torch

from elastic_trainer.loop.device_clock import DeviceClock, mark_on


class BatchClock:
    """Takes the time from when a batch is handed out to when the next is asked for, but for that
    from the end of its own backward pass to the end of its body, in which the other ranks'
    gradients are waited for.

    The backward pass tells of its end itself: a callback that a gradient's hook gives to torch's
    engine runs before the one in which DistributedDataParallel waits, as that comes later.

    Only where all parameters are on the CPU: a GPU's work goes on after the pass, see DeviceClock.

    Args:
        parameters: that are trained; the last one's gradient tells of the pass.
        clock: nanoseconds.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], clock: Callable[[], int] = monotonic_ns
    ) -> None:
        self._clock = clock
        self._began = self._computed = self._ended = 0
        self._compute = self._network = self._batches = self._samples = 0
        self._engine = torch.autograd.Variable._execution_engine
        if parameters and all(one.device.type == "cpu" for one in parameters):
            parameters[-1].register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """A batch is handed out."""
        self._computed = self._ended = 0
        self._began = self._clock()

    def end(self, samples: int) -> None:
        """Its body has ended, and was of so many samples of this rank."""
        if self._computed:
            self._ended = self._clock()
            self._samples += samples

    def passed(self) -> None:
        """The next batch is asked for."""
        if self._ended:
            self._network += self._ended - self._computed
            self._compute += self._clock() - self._began - (self._ended - self._computed)
            self._batches += 1

    def take(self) -> tuple[int, int, int, int]:
        """Return what was measured since this was last asked: nanoseconds of work, nanoseconds of
        waiting for others' gradients, batches, and samples of these."""
        found = self._compute, self._network, self._batches, self._samples
        self._compute = self._network = self._batches = self._samples = 0
        return found

    def _on_gradient(self, _: torch.Tensor) -> None:
        self._engine.queue_callback(self._on_computed)

    def _on_computed(self) -> None:
        self._computed = self._clock()


def clock_of(parameters: Sequence[torch.nn.Parameter]) -> BatchClock | DeviceClock:
    """Return the clock for parameters that are all on one device; where they aren't, or the device
    can't be timed, one that measures nothing."""
    devices = {one.device for one in parameters}
    if len(devices) == 1:
        (device,) = devices
        if device.type not in ("cpu", "meta") and (mark := mark_on(device)) is not None:
            return DeviceClock(parameters, mark)
    return BatchClock(parameters)
