"""Attachments: files that a commit names, but that are too large, or too many's, to be in it.

    tables-<run>-<step>/0.pt, 1.pt, …
    tables-<run>-<step>-from-<run>-<step>/…    with what changed alone, since that base

They are whole before the commit that names them is begun, and stay until no commit can, nor one of
their base's. The commits that stay stand on two bases (retention.py), so that a damaged file never
takes all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_trainer.retry import describe
from elastic_trainer.store.attachment_name import name_of, stands_alone, superfluous
from elastic_trainer.store.content import Content
from elastic_trainer.store.errors import DamagedError, SilentError, UnavailableError
from elastic_trainer.store.folder import FileRecord
from elastic_trainer.store.storage import Storage

IN_MEMORY = 4
"""Commits that may be in processes' and agents' memory only, and be named there."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """Where attachments stay."""

    place: str
    alone: bool
    """True where no commit in the storage stands on another base than these: what damages a file
    of this one could take all commits, unless the next attachments need none."""


class Attachments:
    """Those of one kind in a storage.

    Args:
        storage: of the commits.
        kind: what their directories' names begin with.
    """

    def __init__(self, storage: Storage, kind: str) -> None:
        self._storage, self._kind = storage, kind

    def begin(self, identity: tuple[int, int]) -> str:
        """Return a place for the files of this run and step. Raises StorageError."""
        return self._storage.begin_beside(name_of(self._kind, identity))

    def publish(
        self, written: str, identity: tuple[int, int], base: tuple[int, int] | None = None
    ) -> Published:
        """Return where they stay; remove those that nothing can name any more.

        Args:
            base: the run and step of those that these need to be whole, with all of that base in
                between; None: none.

        Raises:
            StorageError: another process has claimed the storage, or it can't be written.
        """
        place = self._storage.publish_beside(written, name_of(self._kind, identity, base))
        alone = True
        try:
            names = self._storage.names("")
            alone = stands_alone(names, self._kind, identity if base is None else base)
            for name in self._superfluous(names):
                self._storage.remove_beside(name)
        except (OSError, SilentError) as error:
            log.warning(
                "%s keeps older %s for now: %s", self._storage.location, self._kind, describe(error)
            )
        return Published(place, alone)

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

    def _superfluous(self, names: Sequence[str]) -> list[str]:
        return superfluous(names, self._kind, self._storage.keep + IN_MEMORY)
