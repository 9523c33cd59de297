"""Commits in a folder: a directory a step, whole or not there, verified before it is believed.

    step-120/state.pt      written and fsynced under a temporary name, then renamed
    step-120/COMMITTED     last: step, run, cursor, sizes and digests of the files, and its own

A directory without a marker that verifies was never committed: recovery passes it over.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

MARKER = "COMMITTED"
_STEP = re.compile(r"step-(\d+)")
_TEMPORARY = ".writing-"

log = logging.getLogger(__name__)


class StorageError(Exception):
    """The folder can't be used, or a commit can't be read."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    size: int
    """Bytes."""
    xxh3: str


@dataclass(frozen=True, slots=True)
class Commit:
    step: int
    run: int
    """The run that wrote it. A later run knows better than a higher step of an earlier one."""
    cursor: Mapping[str, int]
    files: Mapping[str, FileRecord]
    round: int = 0
    """Rendezvous round that wrote it; 0 without an agent. Later rounds have higher numbers."""


class HashedFile:
    """A file being written, and the digest of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        self._digest.update(data)
        self._size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._size, self._digest.hexdigest())


Writer = Callable[[HashedFile], None]


class Storage:
    """The commits of one job.

    Args:
        folder: shared by all pods of the job.
        keep: commits to keep; older ones are removed after each write.
    """

    def __init__(self, folder: str | Path, *, keep: int = 3) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}: expected at least 2, in case the newest is damaged")
        self.folder = Path(folder)
        self.keep = keep

    def prepare(self) -> None:
        """Make the folder, clear what interrupted writes left, and try a write.

        Raises:
            StorageError: it can't be written; said at the start, not at the first commit.
        """
        probe = self.folder / f"{_TEMPORARY}probe-{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(left, ignore_errors=True)
            probe.mkdir()
            _write_durably(probe / "probe", b"probe")
            shutil.rmtree(probe)
        except OSError as error:
            raise StorageError(
                f"the checkpoint folder {self.folder} can't be written: {error.strerror} "
                f"({error.filename}); name a folder that every worker can write"
            ) from error

    def newest(self) -> Commit | None:
        """The newest commit whose marker and files all verify; each damaged one is warned about."""
        for path in sorted(self._directories(), key=_order, reverse=True):
            try:
                commit = _marker(path)
                for name in commit.files:
                    self.read(commit, name)
            except StorageError as error:
                log.warning("passing over %s: %s", path, error)
            else:
                return commit
        return None

    def newest_identity(self) -> tuple[int, int]:
        """Run and step of the newest commit by its marker alone; (-1, step) or (-1, -1) for none.
        Cheap, whatever the commits' size."""
        return max(map(_order, self._directories()), default=(-1, -1))

    def read(self, commit: Commit, name: str) -> bytes:
        """A file of a commit, verified.

        Raises:
            StorageError: it is missing, or isn't what was committed.
        """
        path = self.path(commit.step) / name
        expected = commit.files[name]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StorageError(f"{path} can't be read: {error.strerror}") from error
        found = FileRecord(len(data), xxhash.xxh3_128_hexdigest(data))
        if found != expected:
            raise StorageError(
                f"{path} is damaged: expected {expected.size} bytes with digest {expected.xxh3}, "
                f"found {found.size} with {found.xxh3}"
            )
        return data

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
        target = self.path(step)
        temporary = self.folder / f"{_TEMPORARY}{step}-{os.getpid()}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            records = {name: _stream(temporary / name, writer) for name, writer in files.items()}
            _sync_directory(temporary)
            if target.exists():
                # Torn or damaged, or made by a run that was rolled back: this one replaces it.
                aside = self.folder / f"{_TEMPORARY}replaced-{step}-{os.getpid()}"
                shutil.rmtree(aside, ignore_errors=True)
                target.rename(aside)
            temporary.rename(target)
            _sync_directory(self.folder)
            commit = Commit(step, run, dict(cursor), records, round_)
            _write_durably(target / f"{MARKER}.new", _encode(commit))
            (target / f"{MARKER}.new").rename(target / MARKER)
            _sync_directory(target)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise StorageError(
                f"step {step} can't be committed to {self.folder}: {error.strerror} "
                f"({error.filename})"
            ) from error
        self._retain()
        return commit

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _directories(self) -> Iterator[Path]:
        if self.folder.is_dir():
            yield from (path for path in self.folder.iterdir() if _STEP.fullmatch(path.name))

    def _retain(self) -> None:
        # Those without a marker sort last, so they go first. Damage elsewhere isn't looked for
        # here: a run that passed a damaged commit over writes newer ones, which sort before it.
        for old in sorted(self._directories(), key=_order, reverse=True)[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)
        for left in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)


def _order(path: Path) -> tuple[int, int]:
    try:
        commit = _marker(path)
    except StorageError:
        return (-1, int(path.name.removeprefix("step-")))
    return (commit.run, commit.step)


def _encode(commit: Commit) -> bytes:
    body = asdict(commit)
    return json.dumps({**body, "xxh3": _digest(body)}, indent=1).encode()


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())


def _marker(path: Path) -> Commit:
    """Raises StorageError: there is none, or it isn't what was written."""
    marker = path / MARKER
    try:
        body = json.loads(marker.read_bytes())
        digest = body.pop("xxh3")
        if digest != _digest(body):
            raise StorageError(f"{marker} is damaged: its digest doesn't match its content")
        files = {name: FileRecord(**record) for name, record in body["files"].items()}
        commit = Commit(body["step"], body["run"], body["cursor"], files, body.get("round", 0))
    except FileNotFoundError:
        raise StorageError(f"no {MARKER}: the commit was never completed") from None
    except OSError as error:
        raise StorageError(f"{marker} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{marker} is damaged: {error}") from error
    if path.name != f"step-{commit.step}":
        raise StorageError(f"{marker} is for step {commit.step}: was the directory renamed?")
    return commit


def _stream(path: Path, writer: Writer) -> FileRecord:
    with path.open("wb") as file:
        hashed = HashedFile(file)
        writer(hashed)
        file.flush()
        os.fsync(file.fileno())
    return hashed.record


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
