"""The agent's folder on shared memory, where its workers' checkpoints outlive them.

Its name follows from the job and the pod, so that the agent of a restarted container finds what the
last one's workers saved. A lock says that an agent owns it: several agents of one machine, as in
tests, then take different ones, and what dead agents left behind is found and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import xxhash

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "volcano-elastic-"
OWNER = "owner"
ABANDONED_SECONDS = 3600.0
"""After so long, a folder that nobody owns is another pod's, and not coming back."""
SHORT_SECONDS = 10.0
"""Such an age where memory is short: an agent that is just claiming its folder isn't disturbed."""
MOST = 64
"""Agents of one pod."""


class MemoryFolder:
    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(
        cls, job: str, pod: str, now: float | None = None, shared_memory: Path = SHARED_MEMORY
    ) -> MemoryFolder | None:
        """This agent's folder; None where there is no shared memory to write.

        Args:
            job: whose checkpoints they are.
            pod: stays the same when a container is restarted.
            now: of the monotonic clock, which wall clocks that are set leave alone.
        """
        now = time.monotonic() if now is None else now
        name = folder_name(job, pod)
        for number in range(MOST):
            path = shared_memory / f"{name}-{number}"
            try:
                path.mkdir(mode=0o700, exist_ok=True)
                if path.stat().st_uid != os.getuid() or path.is_symlink():
                    continue  # anybody may make a folder of that name there
                lock = _locked(path)
            except OSError:
                return None
            if lock is not None:
                os.utime(path / OWNER, (now, now))
                # Not before: what this pod's last agent left is old, too, and what we came for.
                remove_abandoned(shared_memory, now)
                return cls(path, lock)
        return None

    def remove(self) -> None:
        """Nobody needs the checkpoints any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Leaves it to the next agent of this pod."""
        with contextlib.suppress(OSError):
            os.close(self._lock)


def folder_name(job: str, pod: str) -> str:
    """Return what the folders of the pod's agents are called, less the agent's number."""
    return PREFIX + xxhash.xxh3_64_hexdigest(f"{job}\n{pod}".encode())


def _locked(path: Path) -> int | None:
    """The lock's descriptor, or None if another process has it."""
    # Not inherited: workers outlive neither the agent nor its lock.
    lock = os.open(path / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between the two, its last owner may have removed it.
        if os.stat(path / OWNER).st_ino == os.fstat(lock).st_ino:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _folders(shared_memory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from shared_memory.glob(f"{PREFIX}*")


def remove_abandoned(shared_memory: Path, now: float, age: float = ABANDONED_SECONDS) -> None:
    """Remove what agents left that claimed their folder over `age` seconds ago and are gone.

    Args:
        now: of the monotonic clock.
    """
    for path in list(_folders(shared_memory)):
        with contextlib.suppress(OSError):
            if now - (path / OWNER).stat().st_mtime < age or path.stat().st_uid != os.getuid():
                continue
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
