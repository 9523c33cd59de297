"""CopyLog: a copy of another server's rows on disk, in place of memory.

Each part is appended as it comes, with its length and digest, and rows are read back only where
they are adopted: all of it to the last moment that is whole. What a file has beyond that is no part
of the copy. A log that is much longer than its copy at first is given up, so that its source begins
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from elastic_trainer.parameter_server.copies import Copy, MemoryCopy
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.wire import unpack
from elastic_trainer.proto import parameter_server_pb2 as messages

LENGTHENED = 3
"""A log may be so many times as long as when its first moment was whole,"""
AT_LEAST_BYTES = 64 << 20
"""or this long."""
_HEAD = 16


class CopyLog(Copy):
    """Raises OSError by each of its methods that writes or reads."""

    def __init__(self, name: str, epoch: str, folder: Path) -> None:
        super().__init__(name, epoch)
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.copy"
        self._file: IO[bytes] = open(self._path, "w+b", buffering=1 << 20)  # noqa: SIM115
        self._first = 0
        """Bytes when the first moment was whole; 0: it isn't yet."""
        self._length = 0

    def keep(self, part: Any) -> None:
        content = part.SerializeToString()
        head = len(content).to_bytes(8, "little") + xxhash.xxh3_64_digest(content)
        self._file.write(head + content)
        self._length += len(head) + len(content)
        if part.last:
            self._file.flush()
            self._first = self._first or self._length
            given = unpack(part.buckets)
            self.held[given], self.turns[given] = True, unpack(part.turns)

    def drop(self, given: Buckets) -> None:
        # What the file has of them still is no part of the copy.
        self.held[given] = False

    @property
    def is_too_long(self) -> bool:
        return self._first > 0 and self._length > max(AT_LEAST_BYTES, LENGTHENED * self._first)

    def holder(self) -> Holder:
        self._file.flush()
        copy = MemoryCopy(self.name, self.epoch)
        for part in self._parts():
            copy.keep(part)
        return copy.holder()

    def close(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _parts(self) -> Iterator[messages.KeepRequest]:
        with open(self._path, "rb") as file:
            while len(head := file.read(_HEAD)) == _HEAD:
                content = file.read(int.from_bytes(head[:8], "little"))
                if xxhash.xxh3_64_digest(content) != head[8:]:
                    raise OSError(f"{self._path} is damaged: a part isn't what was written")
                yield messages.KeepRequest.FromString(content)


def copies_in(folder: str) -> Callable[[str, str], Copy]:
    """Return what makes copies in a folder, which is emptied of those of an earlier process."""
    place = Path(folder)
    for old in place.glob("*.copy"):
        old.unlink(missing_ok=True)
    return lambda name, epoch: CopyLog(name, epoch, place)
