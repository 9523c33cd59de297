"""Copies that go on beside what the model's device is given meanwhile.

On a GPU: on a stream of their own, to pinned memory, in order with the others by events. On a CPU:
in a thread. Nobody changes what is copied before `Copy.precede`.

GpuCopier has not run on a GPU yet; see docs/gpus.md.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from elastic_trainer.store.byte_limit import read_byte_limit

log = logging.getLogger(__name__)

OVERLAP_VARIABLE = "VOLCANO_ELASTIC_OVERLAP_BYTES"
"""Bytes of a state from which on it is copied beside training; negative: never."""
OVERLAP_BYTES = 1 << 20
"""On CPUs: smaller states are copied at once, which takes less than to begin a thread."""


class Copy(Protocol):
    """A copy under way."""

    def done(self) -> bool:
        """Return whether it has ended, at once."""

    def wait(self) -> None:
        """Return once it has ended. Raises what it raised."""

    def precede(self) -> None:
        """Have what the device is given from now on come after it. Raises as `wait`."""

    def seconds(self) -> float:
        """Return how long it took, once it has ended."""


class Copier(Protocol):
    def pin(self, name: str, memory: torch.Tensor) -> None:
        """Let the device copy to this memory by itself, in place of what had the name before. It
        stays mapped until then."""

    def start(self, copy: Callable[[], None]) -> Copy:
        """Begin a copy of what the device has once it has done all that it was given so far.

        Args:
            copy: gives the device what there is to copy, and waits for none of it.
        """


class HostCopier:
    """For a model on the CPU."""

    def pin(self, name: str, memory: torch.Tensor) -> None:
        """Nothing: all memory is the CPU's."""

    def start(self, copy: Callable[[], None]) -> Copy:
        return _ThreadCopy(copy)


class _ThreadCopy:
    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy = copy
        self._error: Exception | None = None
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._copy()
        except Exception as error:
            self._error = error
        self._seconds = time.monotonic() - began

    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def precede(self) -> None:
        self.wait()

    def seconds(self) -> float:
        return self._seconds


class GpuCopier:
    """For a model on one GPU; no other is touched."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        self._pinned: dict[str, torch.Tensor] = {}
        self._refused: dict[str, int] = {}
        """Addresses that can't be pinned."""

    def pin(self, name: str, memory: torch.Tensor) -> None:
        before = self._pinned.get(name)
        if before is not None and before.data_ptr() == memory.data_ptr():
            return
        if self._refused.get(name) == memory.data_ptr():
            return
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device):  # a thread's own would be GPU 0
            if before is not None:
                runtime.cudaHostUnregister(before.data_ptr())
                del self._pinned[name]
            problem = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
            if problem:
                # CUDA keeps an error until it is asked, which torch does after each kernel: the
                # next one would be blamed, and end the training.
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, device=self._device)
        if problem:
            self._refused[name] = memory.data_ptr()
            log.warning("copies to %s are slower: it can't be pinned (CUDA %d)", name, problem)
            return
        self._pinned[name] = memory

    def start(self, copy: Callable[[], None]) -> Copy:
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                began = _event(self._stream)
                copy()
                return _StreamCopy(self._device, began, _event(self._stream))


class _StreamCopy:
    def __init__(self, device: torch.device, began: Any, ended: Any) -> None:
        self._device, self._began, self._ended = device, began, ended

    def done(self) -> bool:
        return bool(self._ended.query())

    def wait(self) -> None:
        self._ended.synchronize()

    def precede(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._ended)

    def seconds(self) -> float:
        return float(self._began.elapsed_time(self._ended)) / 1000


def _event(stream: Any) -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def copier_of(model: torch.nn.Module) -> Copier | None:
    """Return the copier for a model's state; None where it is on several devices, or on one of
    another kind."""
    devices = {one.device for one in model.parameters() if one.device.type != "cpu"}
    if not devices:
        return HostCopier()
    (device, *others) = devices
    return GpuCopier(device) if device.type == "cuda" and not others else None


def overlap_bytes(copier: Copier | None, environment: Mapping[str, str]) -> int | None:
    """Return from how many bytes on a state is copied beside training; None: never.

    Raises:
        ValueError: the environment says something else than a number.
    """
    if copier is None:
        return None
    found = read_byte_limit(environment, OVERLAP_VARIABLE, OVERLAP_BYTES)
    return found if found >= 0 else None
