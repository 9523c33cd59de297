"""The files of a storage, in a directory; `remote_folder.py` has them behind a URL.

Errors are the operating system's: telling those that pass from those that don't, and trying again,
is Storage's business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from elastic_trainer.store.answer import moved
from elastic_trainer.store.content import Content, read_content, read_span

CHUNK = 1 << 22
"""Bytes read or written at once."""
SYNC_BYTES = 1 << 26
"""Written before they are made durable: a storage would be silent for long if all were at the
end."""

TEMPORARY = ".writing-"
"""How names of what is being written begin: `.writing-<run>-<uuid>-<name>`."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without links."""

MARKER = "COMMITTED"
"""The file that makes a directory a commit."""
WRITING = "WRITING"
"""Notes, in a directory that has its last name from the beginning, that it has no marker yet, or
none any more."""
DAMAGED = "DAMAGED"
"""Notes beside the marker that a file isn't what was written; it takes no good one's place then."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    size: int
    """Bytes."""
    xxh3: str


class HashedFile:
    """A file being written, and the digest of what was written to it.

    Args:
        file: that is written to.
        sync: makes durable what was written so far, where that is done on the way.
    """

    def __init__(self, file: BinaryIO, sync: Callable[[], None] | None = None) -> None:
        self._file = file
        self._sync = sync
        self._digest = xxhash.xxh3_128()
        self._size = self._synced = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        content = memoryview(data).cast("B")
        for start in range(0, len(content), CHUNK):
            piece = content[start : start + CHUNK]
            self._file.write(piece)
            self._digest.update(piece)
            self._size += len(piece)
            moved(len(piece))
            if self._sync is not None and self._size - self._synced >= SYNC_BYTES:
                self._sync()
                self._synced = self._size
                moved()
        return len(content)

    def flush(self) -> None:
        self._file.flush()

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._size, self._digest.hexdigest())


Writer = Callable[[HashedFile], None]


class Folder(Protocol):
    """Names are relative, with slashes. Every method raises OSError where it can't do its work, and
    may be called again then: one that had come to its end unseen does no harm."""

    def make(self) -> None:
        """Make the folder itself."""

    def names(self, under: str = "") -> list[str]:
        """Return what is in it, or in its directory `under`, as it is now and not as cached.

        Raises FileNotFoundError where that doesn't exist.
        """

    def read(self, name: str) -> bytes:
        """Return a small file's content."""

    def load(self, name: str) -> Content:
        """Return a file's content with its digest."""

    def read_span(self, name: str, begin: int, target: memoryview) -> None:
        """Fill `target` with a file's bytes from `begin` on."""

    def write(self, name: str, writer: Writer) -> FileRecord:
        """Write a file whole, in place of what was there; durable on return."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file whole unless it is there; return whether it was not."""

    def record(self, name: str) -> FileRecord:
        """Return size and digest of a file."""

    def modified(self, name: str) -> float:
        """Return when a file or directory was changed last, Unix seconds by the storage's clock."""

    def begin(self, name: str, run: int) -> str:
        """Make an empty directory, nobody else's, for what shall be `name`; return its name."""

    def publish(self, written: str, name: str) -> str:
        """Let what `begin` gave, with its marker, become `name`, or `name-<run>-<uuid>` where there
        is one already, which may be another writer's; return its name now."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all it holds. Interrupted, it leaves none that could
        be taken for one that lost its marker."""

    def path(self, name: str) -> str:
        """Return path or URL, for torch.distributed.checkpoint."""


class LocalFolder:
    """A directory of this machine's file systems, network mounts included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._published: tuple[str, int] | None = None
        """Temporary name and inode of the last, to see a rename that was done despite an error."""

    def __str__(self) -> str:
        return str(self._path)

    def make(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def names(self, under: str = "") -> list[str]:
        return os.listdir(self._path / under)

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def load(self, name: str) -> Content:
        with (self._path / name).open("rb") as file:
            return read_content(file)

    def read_span(self, name: str, begin: int, target: memoryview) -> None:
        with (self._path / name).open("rb") as file:
            read_span(file, begin, target)

    def write(self, name: str, writer: Writer) -> FileRecord:
        target = self._path / name
        new = self._beside(target)
        try:
            hashed = _written(new, writer)
            moved()
            new.rename(target)
        except BaseException:
            _unlink_quietly(new)
            raise
        sync_directory(target.parent)
        return hashed.record

    def create(self, name: str, data: bytes) -> bool:
        target = self._path / name
        new = self._beside(target)
        try:
            _written(new, lambda file: put(file, data))
            moved()
            try:
                # A link comes whole and never replaces, on network file systems too.
                os.link(new, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                moved()
                with target.open("xb") as file:
                    try:
                        moved()
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    except OSError:
                        _unlink_quietly(target)  # else it stays cut off, for all to read
                        raise
            sync_directory(target.parent)
        except FileExistsError:
            return False
        finally:
            _unlink_quietly(new)
        return True

    def record(self, name: str) -> FileRecord:
        with (self._path / name).open("rb") as file:
            return hash_file(file)

    def modified(self, name: str) -> float:
        return (self._path / name).stat().st_mtime

    def begin(self, name: str, run: int) -> str:
        written = f"{TEMPORARY}{run}-{uuid.uuid4().hex}-{name}"
        (self._path / written).mkdir()
        return written

    def publish(self, written: str, name: str) -> str:
        source = self._path / written
        run, drawn, _ = written.removeprefix(TEMPORARY).split("-", 2)
        beside = f"{name}-{run}-{drawn}"
        try:
            inode = source.stat().st_ino
        except FileNotFoundError:
            for place in (name, beside):
                with contextlib.suppress(FileNotFoundError):
                    if self._published == (written, (self._path / place).stat().st_ino):
                        return place  # the try before this one had done it
            raise
        self._published = (written, inode)
        sync_directory(source)
        # A try may come late, after another process has claimed the folder and committed.
        place = beside if (self._path / name).exists() else name
        moved()
        source.rename(self._path / place)
        sync_directory(self._path)
        return place

    def remove(self, name: str) -> None:
        path = self._path / name
        is_file = path.is_symlink() or not path.is_dir()
        moved()
        if is_file:
            path.unlink(missing_ok=True)
            return
        if not name.startswith(TEMPORARY):
            going = self._beside(path)
            path.rename(going)
            path = going
            moved()
        shutil.rmtree(path)

    def path(self, name: str) -> str:
        return str(self._path / name)

    def _beside(self, target: Path) -> Path:
        """A name for a new content of `target` that no other process uses."""
        return target.with_name(f"{TEMPORARY}0-{uuid.uuid4().hex}-{target.name}")


def put(file: HashedFile, data: bytes) -> None:
    """Write all of a small file."""
    file.write(data)


def is_url(folder: str | Path) -> bool:
    return isinstance(folder, str) and "://" in folder


def write_to(file: BinaryIO, writer: Writer, sync: Callable[[], None] | None = None) -> HashedFile:
    """Let `writer` write to `file`, and hash what it writes; `sync` as HashedFile's."""
    hashed = HashedFile(file, sync)
    try:
        writer(hashed)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # which torch.save covers up by its own
            raise error.__context__ from None
        raise
    return hashed


def hash_file(file: Any) -> FileRecord:
    """Return size and digest of what can be read from `file`."""
    digest, size = xxhash.xxh3_128(), 0
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
        moved(len(chunk))
    return FileRecord(size, digest.hexdigest())


def _written(path: Path, writer: Writer) -> HashedFile:
    with path.open("wb") as file:

        def sync() -> None:
            file.flush()
            os.fsync(file.fileno())

        moved()
        hashed = write_to(file, writer, sync)
        sync()
    return hashed


def _unlink_quietly(path: Path) -> None:
    # It is temporary by its name, and cleared with the others.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make durable which files a directory has. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
