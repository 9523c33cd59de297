"""The TCP connections of one round, found so that a hung collective can be broken.

gloo has no abort: a pending collective returns only when a connection fails. So the connections
that a round opened are remembered as the difference of this process's descriptors, and shut down
when the round is over; the waiting thread then gets an error within milliseconds. A listener is
left alone: shutting it down would abort the process.

The same connections tell an error of the training's own from a lost peer: gloo reports a peer as
lost only because one of them failed, and every rank has one to every other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

_TCP_ESTABLISHED = 1
"""Linux's TCP_ESTABLISHED: neither end has closed, and nothing has failed."""


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

    def intact(self, peers: int) -> bool:
        """Whether each of so many peers is still connected; False too where that can't be told."""
        with self._lock:
            if self._sealed is None or self._over:
                return False
            found = _sockets()
            ends = [_established(found[inode]) for inode in self._sealed if inode in found]
            return (
                len(ends) == len(self._sealed) and False not in ends and ends.count(True) >= peers
            )

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


def _established(number: int) -> bool | None:
    """None for what isn't a TCP connection."""
    try:
        with socket.socket(fileno=os.dup(number)) as end:
            if end.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            state = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            return bool(state == _TCP_ESTABLISHED)
    except OSError:
        return False


def _shut(number: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
        if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
            end.getpeername()  # raises OSError for a listener
            end.shutdown(socket.SHUT_RDWR)
