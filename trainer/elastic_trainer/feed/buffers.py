"""Memory for frames, used again: a kernel gives new memory far more slowly than it is copied to."""

from __future__ import annotations

import threading
import time
import weakref

import numpy as np
import numpy.typing as npt
import torch

_PAGE = 4096
_SLACK = 64
"""A frame may need one of so many bytes more than its tensors have, as it aligns them."""
_PART = 1 << 26
"""Bytes by which it is told how long it takes to make memory."""

Bytes = npt.NDArray[np.uint8]


class Buffers:
    """Memory is back once nobody refers to what `take` returned; in any thread."""

    def __init__(self) -> None:
        self._spare: list[Bytes] = []
        self._keeps = True
        """Memory that comes back is kept."""
        self._left = self._made = 0
        """Bytes that are to be made yet, and that were, since `prepare` began."""
        self._began = 0.0
        # A collection of garbage may bring memory back in the very thread that has the lock.
        self._lock = threading.RLock()

    def take(self, size: int) -> torch.Tensor:
        """Return so many bytes (uint8) of any content. Raises MemoryError where there aren't."""
        with self._lock:
            self._keeps = True
            fits = [place for place, one in enumerate(self._spare) if size <= len(one) <= 2 * size]
            found = self._spare.pop(fits[0]) if fits else None
        whole = np.empty(size, np.uint8) if found is None else found
        part = whole[:size]
        if size >= _PAGE:
            weakref.finalize(part, self._back, whole).atexit = False
        return torch.from_numpy(part)

    def prepare(self, *sizes: int) -> None:
        """Have memory for frames of tensors of these sizes there, and touched, unless it is cleared
        meanwhile. Raises MemoryError where there isn't."""
        with self._lock:
            self._keeps = True
        wanted = [size + size // _SLACK + _PAGE for size in sizes]
        self._left, self._made, self._began = sum(wanted), 0, time.monotonic()
        try:
            for size in wanted:
                if self._keeps:
                    self._back(self._make(size))
        finally:
            self._left = 0

    def seconds_left(self) -> float:
        """Return how much longer `prepare` takes, as far as is known; in any thread."""
        left, made = self._left, self._made
        return left * (time.monotonic() - self._began) / made if made else 0.0

    def _make(self, size: int) -> Bytes:
        made = np.empty(size, np.uint8)
        for begin in range(0, size, _PART):
            if not self._keeps:  # nobody needs it any more
                break
            part = made[begin : begin + _PART]
            part[::_PAGE] = 0
            self._left -= len(part)
            self._made += len(part)
        return made

    def spare(self, size: int) -> bool:
        """Return whether there is memory for so many bytes that nobody uses."""
        with self._lock:
            return any(size <= len(one) <= 2 * size for one in self._spare)

    def clear(self) -> None:
        """Give back to the kernel what nobody uses, and what is still used once it is not."""
        with self._lock:
            self._keeps = False
            self._spare.clear()

    def _back(self, whole: Bytes) -> None:
        with self._lock:
            if self._keeps:
                self._spare.append(whole)
