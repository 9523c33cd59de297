"""Where commits are kept: a directory, or anything fsspec has a URL for."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

CHUNK = 1 << 22
"""Bytes read at once to be hashed."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    size: int
    """Bytes."""
    xxh3: str


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


class Folder(Protocol):
    """Names are relative, with slashes. Everything raises OSError where it can't be done."""

    def make(self) -> None: ...

    def names(self, under: str = "") -> list[str]:
        """What is in it, or in its directory `under`; nothing if that doesn't exist."""

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, writer: Writer) -> FileRecord:
        """Durable when it returns."""

    def record(self, name: str) -> FileRecord:
        """Of a file that is there."""

    def begin(self, name: str) -> str:
        """An empty directory to write what shall be `name`."""

    def publish(self, written: str, name: str) -> None:
        """What `begin` gave becomes `name`, in place of what that was."""

    def remove(self, name: str) -> None:
        """A file or a directory with all it holds; nothing is said if it can't be."""

    def path(self, name: str) -> str:
        """For torch.distributed.checkpoint."""


class LocalFolder:
    def __init__(self, path: Path, temporary: str) -> None:
        self._path = path
        self._temporary = temporary

    def __str__(self) -> str:
        return str(self._path)

    def make(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def names(self, under: str = "") -> list[str]:
        try:
            return os.listdir(self._path / under)
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, writer: Writer) -> FileRecord:
        target = self._path / name
        new = target.with_name(f"{target.name}.new")
        with new.open("wb") as file:
            hashed = _written(file, writer)
            file.flush()
            os.fsync(file.fileno())
        new.rename(target)
        _sync_directory(target.parent)
        return hashed.record

    def record(self, name: str) -> FileRecord:
        with (self._path / name).open("rb") as file:
            return _hashed(file)

    def begin(self, name: str) -> str:
        written = f"{self._temporary}{name}"
        shutil.rmtree(self._path / written, ignore_errors=True)
        (self._path / written).mkdir()
        return written

    def publish(self, written: str, name: str) -> None:
        _sync_directory(self._path / written)
        target = self._path / name
        if target.exists():
            # A directory can't be replaced by another that isn't empty.
            aside = self._path / f"{self._temporary}replaced-{name}"
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)
        (self._path / written).rename(target)
        _sync_directory(self._path)

    def remove(self, name: str) -> None:
        path = self._path / name
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()

    def path(self, name: str) -> str:
        return str(self._path / name)


class RemoteFolder:
    """By fsspec. Stores of objects can't rename, so a commit is written in its own place: it is
    none until its marker is there."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ValueError(
                f"the folder {url} needs fsspec: install volcano-elastic[fsspec], and what fsspec "
                "needs for that kind of URL"
            ) from error
        self._url = url
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            # No package for that kind of URL, or no such kind.
            raise ValueError(
                f"the folder {url} can't be used: {error}; expected a path, or a URL of a kind "
                "that fsspec knows, with the package that serves it installed in every pod"
            ) from error

    def __str__(self) -> str:
        return self._url

    def make(self) -> None:
        self._files.makedirs(self._root, exist_ok=True)

    def names(self, under: str = "") -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._at(under).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def read(self, name: str) -> bytes:
        return bytes(self._files.cat_file(self._at(name)))

    def write(self, name: str, writer: Writer) -> FileRecord:
        with self._files.open(self._at(name), "wb") as file:
            hashed = _written(file, writer)
        return hashed.record

    def record(self, name: str) -> FileRecord:
        with self._files.open(self._at(name), "rb") as file:
            return _hashed(file)

    def begin(self, name: str) -> str:
        self.remove(name)
        self._files.makedirs(self._at(name), exist_ok=True)
        return name

    def publish(self, written: str, name: str) -> None:
        pass

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._files.rm(self._at(name), recursive=True)

    def path(self, name: str) -> str:
        return f"{self._url.rstrip('/')}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


def is_url(folder: str | Path) -> bool:
    return isinstance(folder, str) and "://" in folder


def _written(file: BinaryIO, writer: Writer) -> HashedFile:
    hashed = HashedFile(file)
    try:
        writer(hashed)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # which torch.save covers up by its own
            raise error.__context__ from None
        raise
    return hashed


def _hashed(file: Any) -> FileRecord:
    digest, size = xxhash.xxh3_128(), 0
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
