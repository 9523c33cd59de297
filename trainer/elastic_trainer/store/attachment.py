"""Attachments: files that a commit names, but that are too large, or too many's, to be in it.

    tables-<run>-<step>/0.pt, 1.pt, …
    tables-<run>-<step>-from-<run>-<step>/…    with what changed alone, since that base

They are whole before the commit that names them is begun, and stay until no commit can, nor one of
their base's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from elastic_trainer.retry import describe
from elastic_trainer.store.commit import STEP
from elastic_trainer.store.content import Content
from elastic_trainer.store.errors import DamagedError, SilentError, UnavailableError
from elastic_trainer.store.folder import FileRecord
from elastic_trainer.store.storage import Storage

IN_MEMORY = 4
"""Commits that may be in processes' and agents' memory only, and be named there."""

log = logging.getLogger(__name__)


class Attachments:
    """Those of one kind in a storage.

    Args:
        storage: of the commits.
        kind: what their directories' names begin with.
    """

    def __init__(self, storage: Storage, kind: str) -> None:
        self._storage, self._kind = storage, kind
        self._pattern = pattern_of(kind)

    def begin(self, identity: tuple[int, int]) -> str:
        """Return a place for the files of this run and step. Raises StorageError."""
        return self._storage.begin_beside(self._name(identity))

    def publish(
        self, written: str, identity: tuple[int, int], base: tuple[int, int] | None = None
    ) -> str:
        """Return the name under which they stay; remove those that nothing can name any more.

        Args:
            base: the run and step of those that these need to be whole, with all of that base in
                between; None: none.

        Raises:
            StorageError: another process has claimed the storage, or it can't be written.
        """
        name = self._name(identity) + ("" if base is None else f"-from-{base[0]}-{base[1]}")
        place = self._storage.publish_beside(written, name)
        try:
            names = self._storage.names("")
            for name in self._superfluous(names):
                self._storage.remove_beside(name)
        except (OSError, SilentError) as error:
            log.warning(
                "%s keeps older %s for now: %s", self._storage.location, self._kind, describe(error)
            )
        return place

    def load(self, path: str, record: FileRecord) -> Content:
        """Return a file. Raises DamagedError, where two looks find the same damage, or
        UnavailableError."""
        place = f"{self._storage.location}/{path}"
        seen: list[FileRecord] = []
        for _ in range(2):
            content = self._storage.load_beside(path)
            seen.append(FileRecord(content.size, content.xxh3))
            if seen[-1] == record:
                return content
            log.warning("%s isn't what was written, or was read wrongly", place)
        first, second = seen
        if first != second:
            raise UnavailableError(f"{place} can't be read: it reads differently each time")
        raise DamagedError(
            f"{place} is damaged: expected {record.size} bytes with digest {record.xxh3}, found "
            f"{first.size} with {first.xxh3}"
        )

    def _name(self, identity: tuple[int, int]) -> str:
        run, step = identity
        return f"{self._kind}-{run}-{step}"

    def _superfluous(self, names: Sequence[str]) -> list[str]:
        return superfluous(names, self._pattern, self._storage.keep + IN_MEMORY)


def pattern_of(kind: str) -> re.Pattern[str]:
    """Return what matches names: run, step, and those of the base where there is one."""
    return re.compile(rf"{kind}-(\d+)-(\d+)(?:-from-(\d+)-(\d+))?(?:-.*)?")


def superfluous(names: Sequence[str], pattern: re.Pattern[str], newest: int) -> list[str]:
    """Return the attachments that may go: older than the `newest` ones, of no step that a commit in
    the folder is of, and of the base of none of these. Pure."""
    steps = {int(match[1]) for name in names if (match := STEP.fullmatch(name))}
    found = sorted(
        ((int(match[1]), int(match[2])), _base(match), name)
        for name in names
        if (match := pattern.fullmatch(name))
    )
    needed = {base for _, base, _ in found[-newest:]}
    needed |= {base for (_, step), base, _ in found if step in steps}
    return [name for _, base, name in found if base not in needed]


def _base(match: re.Match[str]) -> tuple[int, int]:
    run, step = (match[3], match[4]) if match[3] else (match[1], match[2])
    return int(run), int(step)
