"""Commits in a folder: a directory a step, whole or not there, verified before it is believed.

    TRAINING               which training this is, drawn when the folder is first used
    step-120/state.pt      written and fsynced under a temporary name, then renamed
    step-120/COMMITTED     last: step, run, round, cursor, the files' sizes and digests, its own

A directory without a marker that verifies was never committed: recovery passes it over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from elastic_trainer.store.folder import (
    FileRecord,
    Folder,
    HashedFile,
    LocalFolder,
    RemoteFolder,
    Writer,
    is_url,
)

__all__ = ["Commit", "FileRecord", "HashedFile", "Storage", "StorageError", "Writer"]

MARKER = "COMMITTED"
TRAINING = "TRAINING"
_STEP = re.compile(r"step-(\d+)")
_TEMPORARY = ".writing-"

log = logging.getLogger(__name__)


class StorageError(Exception):
    """The folder can't be used, or a commit can't be read."""


@dataclass(frozen=True, slots=True)
class Commit:
    step: int
    run: int
    """The run that wrote it. A later run knows better than a higher step of an earlier one."""
    cursor: Mapping[str, int]
    files: Mapping[str, FileRecord]
    round: int = 0
    """Rendezvous round that made it; 0 without an agent. Later rounds have higher numbers."""

    @property
    def identity(self) -> tuple[int, int]:
        return (self.run, self.step)


class Storage:
    """The commits of one job.

    Args:
        folder: shared by all pods of the job; a path, or a URL that fsspec knows.
        keep: commits to keep; older ones are removed after each write.

    Raises:
        ValueError: `keep` is below 2, or there is no fsspec for a URL.
    """

    def __init__(self, folder: str | Path, *, keep: int = 3) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}: expected at least 2, in case the newest is damaged")
        self.folder = Path() if is_url(folder) else Path(folder)
        """Of a local storage."""
        self.location = str(folder) if is_url(folder) else str(self.folder.absolute())
        self.keep = keep
        self._files: Folder = (
            RemoteFolder(self.location)
            if is_url(folder)
            else LocalFolder(self.folder, f"{_TEMPORARY}{os.getpid()}-")
        )

    def prepare(self) -> None:
        """Make the folder, and try a write.

        Raises:
            StorageError: it can't be written; said at the start, not at the first commit.
        """
        try:
            self._files.make()
            probe = self._files.begin("probe")
            self._files.write(f"{probe}/probe", lambda file: _put(file, b"probe"))
            self._files.remove(probe)
        except OSError as error:
            raise StorageError(
                f"the checkpoint folder {self.location} can't be written: {_why(error)}; name a "
                "folder that every worker can write, with room for the model and optimizer "
                f"{self.keep + 1} times"
            ) from error

    def training(self) -> str:
        """Which training's folder this is: what is kept elsewhere of another is not to be mixed in.

        Raises:
            StorageError: it can't be read, or not be written the first time.
        """
        try:
            if TRAINING in self._files.names():
                return self._files.read(TRAINING).decode()
            drawn = uuid.uuid4().hex
            self._files.write(TRAINING, lambda file: _put(file, drawn.encode()))
        except OSError as error:
            raise StorageError(
                f"{self.location}/{TRAINING} can't be used: {error.strerror or error}"
            ) from error
        return drawn

    def warn_unless_of(self, training: str) -> None:
        """For another worker than the one that `training` told: whether it is the same folder."""
        with contextlib.suppress(OSError):
            if TRAINING in self._files.names() and self._files.read(TRAINING).decode() == training:
                return
        log.warning(
            "%s is not here the folder that rank 0 keeps the commits in: expected one that all "
            "pods share; once rank 0's pod is lost, so are they",
            self.location,
        )

    def commits(self) -> list[Commit]:
        """Those whose markers verify, newest first; the files aren't looked at."""
        found = []
        for name in self._steps():
            try:
                found.append(self._marker(name))
            except StorageError as error:
                log.warning("passing over %s/%s: %s", self.location, name, error)
        return sorted(found, key=lambda commit: commit.identity, reverse=True)

    def newest(self) -> Commit | None:
        """The newest commit whose marker and files all verify; each damaged one is warned about."""
        for commit in self.commits():
            try:
                for name in commit.files:
                    self.verify(commit, name)
            except StorageError as error:
                log.warning("passing over %s: %s", self.path(commit.step), error)
            else:
                return commit
        return None

    def read(self, commit: Commit, name: str) -> bytes:
        """A file of a commit, verified.

        Raises:
            StorageError: it is missing, or isn't what was committed.
        """
        path = f"step-{commit.step}/{name}"
        try:
            data = self._files.read(path)
        except OSError as error:
            raise StorageError(
                f"{self.location}/{path} can't be read: {error.strerror or error}"
            ) from error
        self._compare(path, commit, name, FileRecord(len(data), xxhash.xxh3_128_hexdigest(data)))
        return data

    def verify(self, commit: Commit, name: str) -> None:
        """Raises StorageError as `read`; the file need not fit into memory."""
        path = f"step-{commit.step}/{name}"
        try:
            found = self._files.record(path)
        except OSError as error:
            raise StorageError(
                f"{self.location}/{path} can't be read: {error.strerror or error}"
            ) from error
        self._compare(path, commit, name, found)

    def write(
        self,
        *,
        step: int,
        run: int,
        cursor: Mapping[str, int],
        files: Mapping[str, Writer],
        round_: int = 0,
    ) -> Commit:
        """Commit a step: durable when this returns, absent or whole if it never does.

        Raises:
            StorageError: the storage refused; earlier commits are as they were.
        """
        written = self.begin(step)
        try:
            records = {
                name: self._files.write(f"{written}/{name}", writer)
                for name, writer in files.items()
            }
        except OSError as error:
            self._files.remove(written)
            raise self._refused(step, error) from error
        return self.finish(written, step=step, run=run, cursor=cursor, files=records, round_=round_)

    def begin(self, step: int) -> str:
        """A place for the files of a commit that others write. Raises StorageError."""
        try:
            self._files.make()
            self._clear()
            return self._files.begin(f"step-{step}")
        except OSError as error:
            raise self._refused(step, error) from error

    def place(self, written: str) -> str:
        """The path or URL of what `begin` gave."""
        return self._files.path(written)

    def names(self, written: str) -> list[str]:
        """The files at what `begin` gave. Raises OSError."""
        return self._files.names(written)

    def write_file(self, path: str, writer: Writer) -> FileRecord:
        """At what `begin` gave, and durable. Raises OSError."""
        return self._files.write(path, writer)

    def record(self, written: str, name: str) -> FileRecord:
        """Of a file at what `begin` gave. Raises OSError."""
        return self._files.record(f"{written}/{name}")

    def finish(
        self,
        written: str,
        *,
        step: int,
        run: int,
        cursor: Mapping[str, int],
        files: Mapping[str, FileRecord],
        round_: int = 0,
    ) -> Commit:
        """What was written becomes the commit of `step`. Raises StorageError as `write`."""
        commit = Commit(step, run, dict(cursor), dict(files), round_)
        try:
            self._files.publish(written, f"step-{step}")
            self._publish_marker(commit)
        except OSError as error:
            self._files.remove(written)
            raise self._refused(step, error) from error
        self._retain()
        return commit

    def _publish_marker(self, commit: Commit) -> None:
        name = f"step-{commit.step}/{MARKER}"
        self._files.write(name, lambda file: _put(file, _encode(commit)))

    def path(self, step: int) -> str:
        return self._files.path(f"step-{step}")

    def _refused(self, step: int, error: OSError) -> StorageError:
        return StorageError(f"step {step} can't be committed to {self.location}: {_why(error)}")

    def _compare(self, path: str, commit: Commit, name: str, found: FileRecord) -> None:
        expected = commit.files[name]
        if found != expected:
            raise StorageError(
                f"{self.location}/{path} is damaged: expected {expected.size} bytes with digest "
                f"{expected.xxh3}, found {found.size} with {found.xxh3}"
            )

    def _steps(self) -> list[str]:
        try:
            return [name for name in self._files.names() if _STEP.fullmatch(name)]
        except OSError as error:
            raise StorageError(
                f"{self.location} can't be read: {error.strerror or error}"
            ) from error

    def _order(self, name: str) -> tuple[int, int]:
        try:
            return self._marker(name).identity
        except StorageError:
            return (-1, int(name.removeprefix("step-")))

    def _retain(self) -> None:
        # Those without a marker sort last, so they go first. Damage elsewhere isn't looked for
        # here: a run that passed a damaged commit over writes newer ones, which sort before it.
        for old in sorted(self._steps(), key=self._order, reverse=True)[self.keep :]:
            self._files.remove(old)
        self._clear()

    def _clear(self) -> None:
        for name in self._files.names():
            if name.startswith(_TEMPORARY):
                self._files.remove(name)

    def _marker(self, name: str) -> Commit:
        """Raises StorageError: there is none, or it isn't what was written."""
        marker = f"{self.location}/{name}/{MARKER}"
        try:
            body = json.loads(self._files.read(f"{name}/{MARKER}"))
            digest = body.pop("xxh3")
            if digest != _digest(body):
                raise StorageError(f"{marker} is damaged: its digest doesn't match its content")
            files = {name: FileRecord(**record) for name, record in body["files"].items()}
            commit = Commit(body["step"], body["run"], body["cursor"], files, body.get("round", 0))
        except FileNotFoundError:
            raise StorageError(f"no {MARKER}: the commit was never completed") from None
        except OSError as error:
            raise StorageError(f"{marker} can't be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{marker} is damaged: {error}") from error
        if name != f"step-{commit.step}":
            raise StorageError(f"{marker} is for step {commit.step}: was the directory renamed?")
        return commit


def _why(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _put(file: HashedFile, data: bytes) -> None:
    file.write(data)


def _encode(commit: Commit) -> bytes:
    body = asdict(commit)
    return json.dumps({**body, "xxh3": _digest(body)}, indent=1).encode()


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())
