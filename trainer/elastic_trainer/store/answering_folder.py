"""A folder whose questions are answered in bounded time, see answer.py."""

from __future__ import annotations

from collections.abc import Callable

from elastic_trainer.store.answer import answer
from elastic_trainer.store.folder import FileRecord, Folder


class AnsweringFolder:
    """Another folder, of which names and reads raise TimeoutError where nothing comes for long.

    Args:
        folder: that is asked.
        patience: returns for how many seconds nothing may come.
    """

    def __init__(self, folder: Folder, patience: Callable[[], float]) -> None:
        self._folder = folder
        self._patience = patience
        # What writes is left to take its time.
        self.make = folder.make
        self.write = folder.write
        self.create = folder.create
        self.begin = folder.begin
        self.publish = folder.publish
        self.remove = folder.remove
        self.path = folder.path

    def names(self, under: str = "") -> list[str]:
        return answer(lambda: self._folder.names(under), self._patience())

    def read(self, name: str) -> bytes:
        return answer(lambda: self._folder.read(name), self._patience())

    def record(self, name: str) -> FileRecord:
        return answer(lambda: self._folder.record(name), self._patience())

    def modified(self, name: str) -> float:
        return answer(lambda: self._folder.modified(name), self._patience())
