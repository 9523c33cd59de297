"""Tells who is at the other end of a unix socket, by the kernel's word."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("iII")
_MOST_GENERATIONS = 1000
_FLAGS = 6
"""Word of /proc/…/stat, after the name, that has the process's flags."""
_EXITING = 0x4
"""Linux's PF_EXITING, which is set before any connection is closed."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected."""

    pid: int
    """0: of a process namespace that can't be seen from here, as another container's."""
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Return who connected. Raises OSError."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        return cls(pid, uid)


def parent_of(pid: int) -> int:
    """Return the process's parent; 0 if it has none, or is gone."""
    return int(_status(pid)[1])


def is_alive(pid: int) -> bool:
    """Return whether there is such a process, and it has not ended."""
    return _status(pid)[0] not in ("Z", "X")


def has_ended(connection: socket.socket, pid: int) -> bool:
    """Return whether the process at the other end is gone, or on its way, though its end may not
    have been read yet. Who has noticed that by another connection of its finds it so here.

    Args:
        pid: its, or 0.
    """
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLRDHUP)
    if watch.poll(0):
        return True
    words = _words(pid)
    return bool(pid) and (len(words) <= _FLAGS or bool(int(words[_FLAGS]) & _EXITING))


def _status(pid: int) -> tuple[str, str]:
    """The letter of a process's state, and its parent; X and 0 for one that is gone."""
    words = _words(pid)
    return (words[0], words[1]) if len(words) > 1 else ("X", "0")


def _words(pid: int) -> list[str]:
    """Return what the kernel says of a process after its name; nothing of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def descends(pid: int, ancestor: int, parent: Callable[[int], int] = parent_of) -> bool:
    """Return whether a process is the other, or a descendant of it."""
    for _ in range(_MOST_GENERATIONS):
        if pid == ancestor:
            return True
        if pid <= 1:
            break
        pid = parent(pid)
    return False


def refusal(
    peer: Peer, uid: int, ancestor: int, parent: Callable[[int], int] = parent_of
) -> str | None:
    """Return why a peer is no worker of this agent; None if it is one.

    Args:
        peer: who connected.
        uid: the agent's user.
        ancestor: the agent's process.
        parent: of a process.
    """
    if peer.uid != uid:
        return f"expected a process of user {uid}, found one of user {peer.uid} (pid {peer.pid})"
    if descends(peer.pid, ancestor, parent):
        return None
    return f"expected a descendant of process {ancestor}, found process {peer.pid}"


def refusal_here(peer: Peer) -> str | None:
    """Return why a peer is no worker of this process, as `refusal` does."""
    return refusal(peer, os.geteuid(), os.getpid())
