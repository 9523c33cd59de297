"""Column: an array that grows where it is."""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
from typing import Any

import numpy as np
import tenacity
import torch
from numpy.typing import NDArray

_UNRESERVED = 0x4000
"""Linux's MAP_NORESERVE: memory is taken where something is written, and only there."""
_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, since 5.14: memory is taken as if something were written."""
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED
# Whoever only looks at a view just then, on another thread, lets go of it within moments.
_GROWTH = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(BufferError),
    stop=tenacity.stop_after_delay(0.5),
    wait=tenacity.wait_fixed(0.005),
    reraise=True,
)


class Column:
    """Zeros, until something is written. It grows without being copied, as the system moves its
    pages, and gives back those that are cleared.

    `numbers` and `tensor`, the same memory, hold until it grows; nobody may keep them over that.
    No method has a view as a local: whoever keeps an error's frame would keep it with that.

    Args:
        dtype: numpy's.
        width: numbers in a row; None: one, without a dimension.
    """

    numbers: NDArray[Any]

    def __init__(self, dtype: Any, width: int | None = None) -> None:
        self.kind = (dtype, width)
        self.row_bytes: int = np.dtype(dtype).itemsize * (1 if width is None else width)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, flags=_FLAGS)
        self._show(0)

    @property
    def tensor(self) -> torch.Tensor:
        return torch.from_numpy(self.numbers)

    def bytes(self, first: int, end: int) -> NDArray[np.uint8]:
        """Return the memory of these rows."""
        return self._bytes(first * self.row_bytes, end * self.row_bytes)

    def grow(self, rows: int) -> None:
        """Have so many rows. Raises BufferError, and stays as it is, where somebody keeps its
        memory."""
        shown = len(self.numbers)
        size = max(mmap.PAGESIZE, rows * self.row_bytes)
        del self.numbers
        try:
            _GROWTH(self._memory.resize, size)
            shown = rows
        except BufferError as error:
            raise BufferError(
                f"expected nobody to keep a column's memory while it grows to {rows} rows, views "
                f"found: {_views(self._memory)}; keep what is read there, not the view"
            ) from error
        finally:
            self._show(shown)

    def take_memory(self, first: int, end: int) -> None:
        """Take the memory of these rows at once: page by page, as they are written, takes the
        system some more than half as long again. What can't be had is taken as they are written."""
        page, pages = _whole_pages(first * self.row_bytes, end * self.row_bytes)
        if pages > 0:
            with contextlib.suppress(OSError):
                self._memory.madvise(_POPULATE_WRITE, page, pages)

    def clear(self, first: int, end: int) -> None:
        """Have zeros in these rows."""
        begin, stop = first * self.row_bytes, end * self.row_bytes
        page, pages = _whole_pages(begin, stop)
        if pages <= 0:
            self.numbers[first:end] = 0
            return
        self._memory.madvise(mmap.MADV_DONTNEED, page, pages)
        self._bytes(begin, page)[:] = self._bytes(page + pages, stop)[:] = 0

    def _bytes(self, begin: int, end: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._memory, dtype=np.uint8, count=end - begin, offset=begin)

    def _show(self, rows: int) -> None:
        dtype, width = self.kind
        shape = (rows,) if width is None else (rows, width)
        self.numbers = np.frombuffer(self._memory, dtype=dtype, count=math.prod(shape)).reshape(
            shape
        )


def _whole_pages(begin: int, end: int) -> tuple[int, int]:
    """Return where the first of the pages begins that are between these bytes, and the bytes of all
    of them; 0 or less: there is none."""
    page = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    return page, end // mmap.PAGESIZE * mmap.PAGESIZE - page


def _views(memory: mmap.mmap) -> int:
    """Return how many views of this memory there are."""
    return sum(type(one) is memoryview and one.obj is memory for one in gc.get_objects())
