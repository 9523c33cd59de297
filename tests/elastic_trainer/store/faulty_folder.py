"""A folder whose operations fail on demand, as a network file system's and a bucket's do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elastic_trainer.store.content import Content
from elastic_trainer.store.folder import FileRecord, LocalFolder, Writer
from elastic_trainer.store.storage import Storage

ERRORS: dict[str, Callable[[], OSError]] = {
    "EIO": lambda: OSError(errno.EIO, "Input/output error"),
    "ESTALE": lambda: OSError(errno.ESTALE, "Stale file handle"),
    "EACCES": lambda: PermissionError(errno.EACCES, "Permission denied"),
    "ENOENT": lambda: FileNotFoundError(errno.ENOENT, "No such file or directory"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "EROFS": lambda: OSError(errno.EROFS, "Read-only file system"),
    "time-out": lambda: TimeoutError("the read operation timed out"),
    "503": lambda: OSError(errno.EIO, "HttpError: 503 Slow Down"),
}


class FaultyFolder(LocalFolder):
    """A real folder. `fault(operation, name)` returns the error to raise, or None."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fault: Callable[[str, str], OSError | None] = lambda *_: None
        self.raised = 0

    def _maybe(self, operation: str, name: str) -> None:
        error = self.fault(operation, name)
        if error is not None:
            self.raised += 1
            raise error

    def make(self) -> None:
        self._maybe("make", "")
        super().make()

    def names(self, under: str = "") -> list[str]:
        self._maybe("list", under)
        return super().names(under)

    def read(self, name: str) -> bytes:
        self._maybe("read", name)
        return super().read(name)

    def load(self, name: str) -> Content:
        self._maybe("read", name)
        return super().load(name)

    def write(self, name: str, writer: Writer) -> FileRecord:
        self._maybe("write", name)
        record = super().write(name, writer)
        self._maybe("written", name)  # the error of an answer that was lost
        return record

    def create(self, name: str, data: bytes) -> bool:
        self._maybe("create", name)
        created = super().create(name, data)
        self._maybe("created", name)
        return created

    def record(self, name: str) -> FileRecord:
        self._maybe("read", name)
        return super().record(name)

    def begin(self, name: str, run: int) -> str:
        self._maybe("begin", name)
        return super().begin(name, run)

    def publish(self, written: str, name: str) -> str:
        self._maybe("rename", name)
        published = super().publish(written, name)
        self._maybe("renamed", name)
        return published

    def remove(self, name: str) -> None:
        self._maybe("delete", name)
        super().remove(name)


def faulty_storage(folder: Path, **given: Any) -> tuple[Storage, FaultyFolder]:
    files = FaultyFolder(folder)
    return Storage(folder, files=files, **given), files


@contextmanager
def failing(
    files: FaultyFolder, operation: str, error: str, *, times: int = 10**9, name: str = ""
) -> Iterator[None]:
    """Within this, so many calls of `operation` (on names that hold `name`) fail."""
    left = [times]

    def fault(called: str, on: str) -> OSError | None:
        if called != operation or name not in on or not left[0]:
            return None
        left[0] -= 1
        return ERRORS[error]()

    files.fault = fault
    try:
        yield
    finally:
        files.fault = lambda *_: None
