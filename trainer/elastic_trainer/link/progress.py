"""The page of memory in which a worker notes its steps, for its agent to read when it likes.

A step then costs its worker three stores and no system call.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from dataclasses import dataclass

_BYTES = 96
"""Twelve signed 64-bit integers, in the order of `Progress`."""
_STEP, _WHEN, _SAMPLES, _STALL, _MOVED, _INPUT, _COMMITS, _TOTAL = range(8)
_COMPUTE, _NETWORK, _BATCHES, _BATCH_SAMPLES = range(8, 12)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""A mapped page that shrinks would kill its reader."""


class PageError(ValueError):
    """A descriptor is no progress page."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a worker."""

    step: int = -1
    """The last one applied; -1: none in this round."""
    when: int = 0
    """CLOCK_MONOTONIC, in ns, of that step's end."""
    samples: int = 0
    """Consumed by all ranks by then; 0: not known."""
    stall: int = 0
    """How long (ns) commits have kept this process from training."""
    moved: int = 0
    """Bytes of state it has moved to take its places in rounds."""
    input: int = 0
    """How long (ns) it has waited for data."""
    commits: int = 0
    """1: a commit keeps it from training now."""
    total: int = 0
    """Samples that all ranks will have consumed in the end; 0: not known."""
    compute: int = 0
    """How long (ns) it has worked on batches, without waiting for other ranks."""
    network: int = 0
    """How long (ns) it then waited for gradients: for slower ranks, and for the network."""
    batches: int = 0
    """That the two are of; 0: they are not measured."""
    batch_samples: int = 0
    """Samples of those batches."""


class ProgressPage:
    """One page, as its worker writes it or as its agent reads it."""

    def __init__(self, cells: memoryview[int], descriptor: int = -1) -> None:
        self._cells = cells
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> ProgressPage:
        """Return a new page to write. Raises OSError."""
        descriptor = os.memfd_create("progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        page = cls(memoryview(mmap.mmap(descriptor, _BYTES)).cast("q"), descriptor)
        page.clear()
        return page

    @classmethod
    def private(cls) -> ProgressPage:
        """Return a page that nobody else reads."""
        return cls(memoryview(bytearray(_BYTES)).cast("q"))

    @classmethod
    def read_only(cls, descriptor: int) -> ProgressPage:
        """Return the page behind a descriptor that another process sent, to read.

        Raises:
            PageError: it is none that can be read without harm.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
            if seals & _SEALS != _SEALS or size != _BYTES:
                raise PageError(f"expected {_BYTES} bytes of sealed memory, found {size} bytes")
            pages = mmap.mmap(descriptor, _BYTES, access=mmap.ACCESS_READ)
        except OSError as error:
            raise PageError(
                f"expected sealed memory, found another kind of file ({error})"
            ) from None
        return cls(memoryview(pages).cast("q"))

    def fileno(self) -> int:
        """Return the descriptor to send to the reader."""
        return self._descriptor

    def sent(self) -> None:
        """Closes the descriptor; the page stays mapped."""
        os.close(self._descriptor)
        self._descriptor = -1

    def clear(self) -> None:
        """Notes that no step was applied in this round yet."""
        self._cells[_STEP] = -1

    def stepped(self, step: int, samples: int) -> None:
        """Notes that `step` has just been applied."""
        cells = self._cells
        cells[_WHEN] = time.monotonic_ns()
        cells[_SAMPLES] = samples
        cells[_STEP] = step

    def plans(self, samples: int) -> None:
        """Notes how many samples all ranks will have consumed in the end."""
        self._cells[_TOTAL] = samples

    def commits(self) -> None:
        """Notes that a commit keeps this process from training, until it is `stalled`."""
        self._cells[_COMMITS] = 1

    def stalled(self, seconds: float) -> None:
        """Adds to the time that commits have taken."""
        self._cells[_COMMITS] = 0
        self._cells[_STALL] += int(seconds * 1e9)

    def waited(self, seconds: float) -> None:
        """Adds to the time that data has been waited for."""
        self._cells[_INPUT] += int(seconds * 1e9)

    def worked(self, compute: int, network: int, batches: int, samples: int) -> None:
        """Adds to the time (ns) of so many batches: of this process alone, and in waiting for the
        gradients of others."""
        cells = self._cells
        cells[_COMPUTE] += compute
        cells[_NETWORK] += network
        cells[_BATCHES] += batches
        cells[_BATCH_SAMPLES] += samples

    def transferred(self, count: int) -> None:
        """Adds to the bytes of state that were moved."""
        self._cells[_MOVED] += count

    def read(self) -> Progress:
        """Return what is noted now."""
        return Progress(*self._cells)
