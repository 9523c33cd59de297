"""A file's content in memory, hashed on its way there."""

from __future__ import annotations

import errno
import io
import mmap
import os
from typing import Any

import xxhash

from elastic_trainer.store.answer import moved

PIECE = 1 << 20
"""Bytes read at once; few enough to be in the processor's cache still when they are hashed."""


class Content(io.RawIOBase):
    """The content of a file, read as a file is: torch.load takes it without another copy."""

    def __init__(self, memory: memoryview, xxh3: str) -> None:
        super().__init__()
        self.size: int = len(memory)
        self.xxh3 = xxh3
        self._memory = memory
        self._at: int = 0

    def __bytes__(self) -> bytes:
        return bytes(self._memory)

    def readinto(self, buffer: Any) -> int:
        count: int = min(len(buffer), max(0, self.size - self._at))
        buffer[:count] = self._memory[self._at : self._at + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._at, self.size)[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}: expected 0 or more")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def memory_of(size: int) -> memoryview:
    """Return so many bytes, which the kernel clears as they are touched. A bytearray is cleared
    before, and a BytesIO copied as it grows: loading took a quarter longer."""
    return memoryview(mmap.mmap(-1, size) if size else bytearray())


def read_content(file: Any) -> Content:
    """Return the content of a file that is seekable.

    Raises:
        OSError: it can't be read, or has another length than it said.
    """
    size: int = file.seek(0, os.SEEK_END)
    file.seek(0)
    memory, digest, found = memory_of(size), xxhash.xxh3_128(), 0
    while count := file.readinto(memory[found : found + PIECE]):
        digest.update(memory[found : found + count])
        found += count
        moved(count)
    if found != size or file.read(1):
        raise OSError(errno.EIO, f"expected {size} bytes, and found others")
    return Content(memory, digest.hexdigest())


def read_span(file: Any, begin: int, target: memoryview) -> None:
    """Fill `target` from where a seekable file has its byte `begin`.

    Raises:
        OSError: it can't be read, or ends before.
    """
    file.seek(begin)
    found = 0
    while found < len(target):
        count = file.readinto(target[found : found + PIECE])
        if not count:
            ends = begin + found
            raise OSError(errno.EIO, f"expected {begin + len(target)} bytes, found {ends}")
        found += count
        moved(count)
