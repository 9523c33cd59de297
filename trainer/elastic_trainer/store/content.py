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
    """The content of a file, read as a file is: torch.load takes it without another copy.

    It lies in memory that the kernel clears as it is touched. A bytearray is cleared before, and a
    BytesIO copied as it grows: loading took a quarter longer.

    Args:
        file: is read from its beginning to its end; seekable.

    Raises:
        OSError: it can't be read, or has another length than it said.
    """

    def __init__(self, file: Any) -> None:
        super().__init__()
        self.size: int = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._memory = memoryview(mmap.mmap(-1, self.size) if self.size else bytearray())
        self._at: int = 0
        digest, found = xxhash.xxh3_128(), 0
        while count := file.readinto(self._memory[found : found + PIECE]):
            digest.update(self._memory[found : found + count])
            found += count
            moved(count)
        if found != self.size or file.read(1):
            raise OSError(errno.EIO, f"expected {self.size} bytes, and found others")
        self.xxh3 = digest.hexdigest()

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
