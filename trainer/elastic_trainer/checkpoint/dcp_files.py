"""Files as torch.distributed.checkpoint reads and writes them, on a storage that may be silent.

Each system call is one of the storage's calls (store/answer.py), so one that never returns raises
SilenceError after a while, and what DCP would do next stays undone.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch.distributed.checkpoint.filesystem import FileSystem

from elastic_trainer.store.answer import Calls, SilenceError, moved
from elastic_trainer.store.folder import CHUNK, SYNC_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")


class AnsweringFileSystem(FileSystem):
    """DCP's local file system. Whatever is written is durable once its stream is closed.

    Args:
        calls: to the storage.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @contextlib.contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        """Open a file. Raises OSError, here and from all that is done with it."""
        raw = _File(path, mode, self._calls)
        stream: Any = (
            io.BufferedReader(raw, CHUNK) if mode == "rb" else io.BufferedWriter(raw, CHUNK)
        )
        try:
            yield cast(io.IOBase, stream)
            stream.close()
        except BaseException:
            raw.failed = True  # what is buffered is worth nothing now
            with contextlib.suppress(OSError):
                stream.close()
            raise

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        self._calls.call(lambda: super(AnsweringFileSystem, self).mkdir(path))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._calls.call(lambda: super(AnsweringFileSystem, self).exists(path))

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._calls.call(lambda: super(AnsweringFileSystem, self).rename(path, new_path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._calls.call(lambda: super(AnsweringFileSystem, self).rm_file(path))


class _File(io.RawIOBase):
    """A file, read at any place or written from its beginning, CHUNK bytes a call at most."""

    def __init__(self, path: str | os.PathLike[str], mode: str, calls: Calls) -> None:
        self.failed = False
        """Nothing more is to be done with it but to close it."""
        if mode not in ("rb", "wb"):
            raise ValueError(f"{path}: expected mode rb or wb, found {mode}")
        self._path, self._calls = Path(path), calls
        self._writes = mode == "wb"
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if self._writes else os.O_RDONLY
        self._position = self._synced = 0
        self._descriptor: int | None = None
        self._descriptor, self._size = calls.call(self._open)

    def _open(self) -> tuple[int, int]:
        descriptor = os.open(self._path, self._flags | os.O_CLOEXEC, 0o666)
        with self._closing_late(descriptor):
            size = os.fstat(descriptor).st_size
        return descriptor, size

    def readable(self) -> bool:
        return not self._writes

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return not self._writes

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if self._writes:
            raise io.UnsupportedOperation("seek: it is written from its beginning to its end")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        count, place = min(len(target), CHUNK), self._position

        def read(descriptor: int) -> bytes:
            # Not into `buffer`: whoever reads may be elsewhere by the time the bytes come.
            return os.pread(descriptor, count, place)

        found = self._ask(read, len)
        target[: len(found)] = found
        self._position += len(found)
        return len(found)

    def write(self, data: Any) -> int:
        piece = bytes(memoryview(data).cast("B")[:CHUNK])
        written = self._ask(lambda descriptor: os.write(descriptor, piece), int)
        self._position += written
        if self._position - self._synced >= SYNC_BYTES:
            self._sync()
        return written

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._writes and not self.failed:
                self._sync()
        finally:
            super().close()
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                self._calls.call(lambda: os.close(descriptor))

    def _sync(self) -> None:
        self._ask(os.fsync, lambda _: 0)
        self._synced = self._position

    def _ask(self, operation: Callable[[int], T], count: Callable[[T], int]) -> T:
        descriptor = self._descriptor
        if self.failed or descriptor is None:
            raise SilenceError(f"{self._path} is not used further")

        def ask() -> T:
            with self._closing_late(descriptor):
                done = operation(descriptor)
                moved(count(done))
            return done

        try:
            return self._calls.call(ask)
        except SilenceError:
            self.failed, self._descriptor = True, None  # which who was left behind closes
            raise

    @contextlib.contextmanager
    def _closing_late(self, descriptor: int) -> Generator[None, None, None]:
        """In a call's thread: close the file where nobody waits for it any more."""
        try:
            yield
            moved()
        except SilenceError:
            os.close(descriptor)
            raise
