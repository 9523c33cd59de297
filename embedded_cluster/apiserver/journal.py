"""Objects on disk: SQLite, one row an object, written before a request is answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import orjson

from embedded_cluster.apiserver.kind import ResourceKey
from volcano_elastic.kube.resource import Object


class JournalError(Exception):
    """The data directory cannot be used; says why."""


class SqliteJournal:
    """Write-ahead logging keeps every acknowledged write through a SIGKILL of the process.

    Raises:
        JournalError: the directory cannot be made, the file is not ours, or another server
            has it open.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "objects.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(file, isolation_level=None, timeout=1)
            # Exclusive: two servers on one file would both hand out the same revisions.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS objects (api_group TEXT, plural TEXT, namespace TEXT,"
                " name TEXT, data BLOB, PRIMARY KEY (api_group, plural, namespace, name))"
                " WITHOUT ROWID"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS revision (value INTEGER)")
            if self._db.execute("SELECT value FROM revision").fetchone() is None:
                self._db.execute("INSERT INTO revision VALUES (0)")
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"data directory {folder}: expected a writable folder that no other API server "
                f"uses, found: {error}"
            ) from error

    @property
    def revision(self) -> int:
        """The newest one handed out; 0 for a new folder."""
        return int(self._db.execute("SELECT value FROM revision").fetchone()[0])

    def objects(self) -> Iterator[tuple[ResourceKey, Object]]:
        for group, plural, data in self._db.execute("SELECT api_group, plural, data FROM objects"):
            yield (group, plural), orjson.loads(data)

    def write(
        self, revision: int, resource: ResourceKey, place: tuple[str, str], raw: bytes | None
    ) -> None:
        """Keep what is at a place from this revision on: JSON, or None for nothing."""
        key = (*resource, *place)
        with self._db:
            self._db.execute("BEGIN")
            if raw is None:
                self._db.execute(
                    "DELETE FROM objects WHERE api_group=? AND plural=? AND namespace=? AND name=?",
                    key,
                )
            else:
                statement = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
                self._db.execute(statement, (*key, raw))
            self._db.execute("UPDATE revision SET value=?", (revision,))

    def close(self) -> None:
        self._db.close()
