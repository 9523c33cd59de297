"""The TCP connections of one round, found so that a hung collective can be broken.

gloo has no abort: a pending collective returns only when a connection fails. So the connections
that a round opened are remembered as the difference of this process's descriptors, and shut down
when the round is over; the waiting thread then gets an error within milliseconds. A listener is
left alone: shutting it down would abort the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading


class Connections:
    """Those opened from its making on, up to `seal`. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before = frozenset(_sockets())
        self._sealed: frozenset[str] | None = None
        self._over = False

    def seal(self) -> None:
        """All are there; what opens from now on belongs to others."""
        with self._lock:
            self._sealed = frozenset(_sockets()) - self._before

    def forget(self) -> None:
        """The round is left behind: `shut` does nothing any more."""
        with self._lock:
            self._over = True

    def shut(self) -> bool:
        """Ends them, as often as one likes; False once they are forgotten."""
        with self._lock:
            if self._over:
                return False
            for inode, number in _sockets().items():
                if inode not in self._before if self._sealed is None else inode in self._sealed:
                    _shut(number)
            return True


def _sockets() -> dict[str, int]:
    """Descriptors of this process's sockets by inode, as numbers are used again."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[target] = int(name)
    return found


def _shut(number: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
        if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
            end.getpeername()  # raises OSError for a listener
            end.shutdown(socket.SHUT_RDWR)
