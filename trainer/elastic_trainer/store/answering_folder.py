"""A folder that does what it is asked in bounded time, see answer.py."""

from __future__ import annotations

from elastic_trainer.store.answer import Calls
from elastic_trainer.store.content import Content
from elastic_trainer.store.folder import FileRecord, Folder, Writer


class AnsweringFolder:
    """Another folder, whose operations raise SilenceError where nothing moves for long.

    What writes then may have been done or not; what it has not done by then it doesn't do later,
    but for the system call that it was in.

    Args:
        folder: that is asked.
        calls: to the storage that it is in.
    """

    def __init__(self, folder: Folder, calls: Calls) -> None:
        self._folder = folder
        self._call = calls.call
        self.path = folder.path

    def make(self) -> None:
        self._call(self._folder.make)

    def names(self, under: str = "") -> list[str]:
        return self._call(lambda: self._folder.names(under))

    def read(self, name: str) -> bytes:
        return self._call(lambda: self._folder.read(name))

    def load(self, name: str) -> Content:
        return self._call(lambda: self._folder.load(name))

    def read_span(self, name: str, begin: int, target: memoryview) -> None:
        self._call(lambda: self._folder.read_span(name, begin, target))

    def write(self, name: str, writer: Writer) -> FileRecord:
        return self._call(lambda: self._folder.write(name, writer))

    def create(self, name: str, data: bytes) -> bool:
        return self._call(lambda: self._folder.create(name, data))

    def record(self, name: str) -> FileRecord:
        return self._call(lambda: self._folder.record(name))

    def modified(self, name: str) -> float:
        return self._call(lambda: self._folder.modified(name))

    def begin(self, name: str, run: int) -> str:
        return self._call(lambda: self._folder.begin(name, run))

    def publish(self, written: str, name: str) -> str:
        return self._call(lambda: self._folder.publish(written, name))

    def remove(self, name: str) -> None:
        self._call(lambda: self._folder.remove(name))
