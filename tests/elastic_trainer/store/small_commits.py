"""Small commits, for tests of the storage."""

from __future__ import annotations

from pathlib import Path

from elastic_trainer.store.folder import HashedFile
from elastic_trainer.store.storage import Storage


def commit(storage: Storage, step: int, run: int = 1) -> None:
    def write(file: HashedFile) -> None:
        file.write(b"%d" % step * 100)

    storage.write(step=step, run=run, cursor={"step": step}, files={"state.pt": write})


def steps(folder: Path) -> list[int]:
    return [found.step for found in Storage(folder).commits()]


def newest(storage: Storage) -> int | None:
    found = storage.newest()
    return None if found is None else found.step
