"""The files of a storage behind a URL, by fsspec.

Stores of objects can't rename, so a commit is written in a place of its own, which no other writer
has: it is no commit until its marker is there. Whatever else than OSError a store's client raises
becomes one.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar, cast

from elastic_trainer.store.content import Content, read_content, read_span
from elastic_trainer.store.folder import (
    MARKER,
    WRITING,
    FileRecord,
    Writer,
    hash_file,
    write_to,
)

READ_AHEAD = 1 << 26
"""Bytes that one request asks for."""

T = TypeVar("T")


class RemoteFolder:
    """A prefix of a bucket, or whatever else fsspec has a URL for."""

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
        with _as_os_errors():
            self._files.makedirs(self._root, exist_ok=True)

    def names(self, under: str = "") -> list[str]:
        with _as_os_errors():
            self._files.invalidate_cache()
            found = self._files.ls(self._at(under).rstrip("/"), detail=False)
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def read(self, name: str) -> bytes:
        with _as_os_errors():
            return bytes(self._files.cat_file(self._at(name)))

    def load(self, name: str) -> Content:
        with (
            _as_os_errors(),
            self._files.open(self._at(name), "rb", block_size=READ_AHEAD) as file,
        ):
            return read_content(file)

    def read_span(self, name: str, begin: int, target: memoryview) -> None:
        with (
            _as_os_errors(),
            self._files.open(self._at(name), "rb", block_size=READ_AHEAD) as file,
        ):
            read_span(file, begin, target)

    def write(self, name: str, writer: Writer) -> FileRecord:
        with _as_os_errors():
            file = self._files.open(self._at(name), "wb")
        try:
            hashed = write_to(cast(Any, _Guarded(file)), writer)
        except BaseException:
            # Closing would make a file of what there is so far.
            for end in ("discard", "close"):
                with contextlib.suppress(Exception):
                    getattr(file, end)()
                    break
            raise
        with _as_os_errors():
            file.close()
        return hashed.record

    def create(self, name: str, data: bytes) -> bool:
        path = self._at(name)
        try:
            with _as_os_errors():
                try:
                    # If-none-match, where the store has it; else looked for, then written.
                    self._files.pipe_file(path, data, mode="create")
                except (TypeError, NotImplementedError):
                    if self._files.exists(path):
                        return False
                    self._files.pipe_file(path, data)
        except FileExistsError:
            return False
        return True

    def record(self, name: str) -> FileRecord:
        with _as_os_errors(), self._files.open(self._at(name), "rb") as file:
            return hash_file(file)

    def modified(self, name: str) -> float:
        with _as_os_errors():
            found = self._files.modified(self._at(name))
        return found.timestamp() if isinstance(found, datetime) else float(found)

    def begin(self, name: str, run: int) -> str:
        written = f"{name}-{run}-{uuid.uuid4().hex}"
        with _as_os_errors():
            self._files.makedirs(self._at(written), exist_ok=True)
        self._note_writing(written)
        return written

    def publish(self, written: str, name: str) -> str:
        # Its marker makes it a commit; what is noted beside that one says no more.
        with contextlib.suppress(OSError), _as_os_errors():
            self._files.rm_file(self._at(f"{written}/{WRITING}"))
        return written

    def remove(self, name: str) -> None:
        with _as_os_errors():
            marked = self._files.exists(self._at(f"{name}/{MARKER}"))
        if marked:
            self._note_writing(name)
        with _as_os_errors():
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._at(f"{name}/{MARKER}"))
            with contextlib.suppress(FileNotFoundError):
                # The note last: where this is interrupted, it says what the rest is.
                files = self._files.find(self._at(name))
                if rest := [path for path in files if not path.endswith(f"/{WRITING}")]:
                    self._files.rm(rest)
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(self._at(name), recursive=True)

    def _note_writing(self, written: str) -> None:
        with _as_os_errors():
            self._files.pipe_file(self._at(f"{written}/{WRITING}"), b"not a commit\n")

    def path(self, name: str) -> str:
        return f"{self._url.rstrip('/')}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


class _Guarded:
    """A store's file, whose errors are OSErrors."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes | bytearray | memoryview) -> int:
        return int(self._call(self._file.write, data) or 0)

    def flush(self) -> None:
        self._call(self._file.flush)

    @staticmethod
    def _call(method: Callable[..., T], *arguments: Any) -> T:
        with _as_os_errors():
            return method(*arguments)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Clients of stores raise what their libraries do: botocore's, google's, azure's, aiohttp's."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        kinds = {404: errno.ENOENT, 401: errno.EACCES, 403: errno.EACCES}
        said = f"{type(error).__name__}: {error}"
        raise OSError(kinds.get(_status(error), errno.EIO), said) from error


def _status(error: Exception) -> int:
    """The HTTP status that an error tells of; 0 if it tells of none."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            found = getattr(holder, name, None)
            if isinstance(found, int):
                return found
    return 0
