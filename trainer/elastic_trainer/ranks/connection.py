"""The TCP connections of one round, found so that a hung collective can be broken.

gloo has no abort: a pending collective returns only when a connection fails. So the connections
of a round are remembered, and shut down when the round is over; the waiting thread then gets an
error within milliseconds. A listener is left alone: shutting it down would abort the process.

They are shut for receiving only, and kept open until this rank is out of its collectives. A message
that gloo can't send is put aside until the connection takes it; where the connection fails then,
gloo tells those who wait to receive and those whose send has not begun, but nobody who waits for
that message: its thread would sleep for 30 minutes. So no rank's sends fail before it has stopped
receiving, neither by its own doing nor by that of a peer which knows earlier.

Who makes a group and waits for a peer to connect waits at no connection: gloo listens for one that
names the number of the pair, for as long as the group's time-out, 30 minutes. One of our own that
names it ends that wait, and ends itself.

Other threads open sockets too while a round connects: to a tracking server, to object storage. A
connection is the round's if one of its ends is a listener that a rank opened for the round, which
the ranks tell one another; until they have, one that leads to a port of the range that the kernel
gives listeners without a port of their own, as gloo's are, and services are not.

The same connections tell an error of the training's own from a lost peer: gloo reports a peer as
lost only because one of them failed, and every rank has one to every other; in a large world one to
each of its neighbours, and others as they are used (neighbours.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

_TCP_ESTABLISHED = 1
"""Linux's TCP_ESTABLISHED: neither end has closed, and nothing has failed."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_PORT = 32768
_PAIR_NUMBER = struct.Struct("@n")
"""gloo's sequence_number_t, with which a connection begins; a listener's pairs count from 0."""
CALL_SECONDS = 2.0
"""For a connection to a listener of this process. Where its queue is full, the kernel tries again
after a second."""
SPARE_DESCRIPTORS = 256
"""So many are left for all else that the process opens."""
_ANY = ("0.0.0.0", "::")

Address = tuple[str, int]
"""Host and port of a socket."""


class Connections:
    """Those of the round that begins to connect when this is made. Safe between threads.

    Args:
        store_port: of the round's store, whose connection is one of the round.
        world: ranks of the round.
    """

    def __init__(self, store_port: int = 0, world: int = 0) -> None:
        self._lock = threading.Lock()
        self._before = frozenset(_sockets())
        self._store_port = store_port
        self._world = world
        self._called: set[Address] = set()
        """Listeners at which no wait for a peer lasts any more."""
        self._first_port = _first_given_port()
        self._sealed: frozenset[str] | None = None
        self._comes: Callable[[Address, Address], bool] | None = None
        """Tells which of later connections are the round's; None: there are none."""
        self._hosts: frozenset[str] = frozenset()
        """Hosts of all ranks."""
        self._groups_come: Callable[[], bool] = lambda: False
        self._numbers: list[tuple[int, int]] = []
        """Descriptor and inode of each that leads to a peer."""
        self._over = False
        self._held: dict[str, socket.socket] = {}
        """By inode, what was shut: descriptors of our own, as gloo closes its own."""

    def listeners(self) -> set[Address]:
        """Return the addresses at which this process has begun to listen since this was made."""
        return set(self._listeners(_sockets()))

    def seal(
        self,
        listeners: Iterable[Address],
        *,
        more_come: bool = False,
        groups_come: Callable[[], bool] = lambda: False,
    ) -> None:
        """All are there, and each is to or from one of these listeners of all ranks.

        Args:
            more_come: there may be others later, to or from the same listeners.
            groups_come: tells, whenever it matters, whether more groups of these ranks were made
                or are being made. Then what leads to a listener of this process, or to one without
                a port of its own on a rank's host, is the round's, too.
        """
        sockets = _sockets()
        known = set(listeners)
        ports = {port for host, port in known if host in _ANY}
        own = {port for _, port in self._listeners(sockets)}

        def of_round(local: Address, remote: Address) -> bool:
            return (
                local[1] in own
                or remote in known
                or remote[1] in ports
                or remote[1] == self._store_port
            )

        with self._lock:
            self._sealed = self._found(of_round, sockets)
            self._comes = of_round if more_come else None
            self._hosts = frozenset(host for host, _ in known)
            self._groups_come = groups_come
            self._numbers = [
                (sockets[inode], os.fstat(sockets[inode]).st_ino)
                for inode in self._sealed
                if not self._leads_to_store(sockets[inode])
            ]

    def failed(self) -> bool:
        """Return whether gloo has given one up, as it does before a collective fails: for each
        step, at half a microsecond a peer."""
        try:
            return any(os.fstat(number).st_ino != inode for number, inode in self._numbers)
        except OSError:  # closed
            return True

    def forget(self) -> None:
        """The round is left behind: `shut` does nothing any more."""
        with self._lock:
            self._over = True
            for end in self._held.values():
                end.close()
            self._held.clear()

    def intact(self, peers: int) -> bool:
        """Return whether each of so many peers is still connected; False too where that can't be
        told."""
        with self._lock:
            if self._sealed is None or self._over or self._held:
                return False
            found = _sockets()
            all_known = self._sealed | self._came(found)
            ends = [_established(found[inode]) for inode in all_known if inode in found]
            return len(ends) == len(all_known) and False not in ends and ends.count(True) >= peers

    def given_up(self) -> bool:
        """Return whether gloo has closed all that lead to peers, so that no message comes or goes
        any more; False where that can't be told."""
        with self._lock:
            if self._sealed is None or self._over:
                return False
            known = self._sealed | self._came(_sockets())
            held = self._held.keys()
            ends: Counter[str] = Counter()
            for inode, number in _descriptors():
                if inode in known and not self._leads_to_store(number):
                    ends[inode] += 1
            return all(count == 1 and inode in held for inode, count in ends.items())

    def shut(self) -> bool:
        """Receives from none any more, as often as one likes; False once they are forgotten."""
        with self._lock:
            if self._over:
                return False
            sockets = _sockets()
            if self._sealed is not None:
                chosen = self._sealed | self._came(sockets)
            else:
                own = {port for _, port in self._listeners(sockets)}
                chosen = self._found(
                    lambda local, remote: local[1] in own or self._likely(remote), sockets
                )
            for inode in chosen & sockets.keys():
                self._hold(inode, sockets[inode])
            for end in self._held.values():
                with contextlib.suppress(OSError):  # not connected any more
                    end.shutdown(socket.SHUT_RD)
            return True

    def end_waits_for_peers(self, groups: int, waits: Callable[[], bool]) -> None:
        """Connect to this process's own listeners in place of each peer that may never come, and
        close the connections. Not before the round is over: it breaks a group in the making.

        gloo keeps a descriptor of each that it waits for no more, or not yet, and ends the process
        where it gets none. So the newest listener is called first, and none once the wait has
        ended or few descriptors are left.

        Args:
            groups: that may share a listener.
            waits: tells whether this process still waits for a peer.
        """
        left = _free_descriptors() - SPARE_DESCRIPTORS
        for listener in self._listeners(_sockets()):
            if listener in self._called:
                continue
            self._called.add(listener)
            with contextlib.suppress(OSError):  # it is closed by now, or nobody answers there
                for pair in range(self._world * groups):  # at most
                    if left <= 0 or self._over or not waits():
                        return
                    left -= 1
                    with socket.create_connection(listener, CALL_SECONDS) as end:
                        end.sendall(_PAIR_NUMBER.pack(pair))

    def _hold(self, inode: str, number: int) -> None:
        if inode in self._held:
            return
        with contextlib.suppress(OSError):
            end = socket.socket(fileno=os.dup(number))
            if _inode(end) == inode:
                self._held[inode] = end
            else:  # the number was used again meanwhile
                end.close()

    def _leads_to_store(self, number: int) -> bool:
        remote = _remote(number)
        return remote is not None and remote[1] == self._store_port

    def _came(self, sockets: Mapping[str, int]) -> frozenset[str]:
        """Return the round's connections that were opened since all were there, and still are."""
        if self._groups_come():
            own = {port for _, port in self._listeners(sockets)}
            return self._found(
                lambda local, remote: (
                    local[1] in own or (remote[0] in self._hosts and remote[1] >= self._first_port)
                ),
                sockets,
            )
        return self._found(self._comes, sockets) if self._comes is not None else frozenset()

    def _new(self, inode: str) -> bool:
        return inode not in self._before

    def _listeners(self, sockets: Mapping[str, int]) -> list[Address]:
        """The newest first, by inode: the kernel counts them up, for each CPU."""
        new = sorted(filter(self._new, sockets), key=lambda inode: (len(inode), inode))
        found = (_local(sockets[inode], listens=True) for inode in reversed(new))
        return [address for address in found if address is not None]

    def _found(
        self, of_round: Callable[[Address, Address], bool], sockets: Mapping[str, int]
    ) -> frozenset[str]:
        """The new TCP connections of which `of_round`, asked with both ends, says so."""
        chosen = []
        for inode, number in sockets.items():
            local = _local(number) if self._new(inode) else None
            remote = _remote(number) if local is not None else None
            if local is not None and remote is not None and of_round(local, remote):
                chosen.append(inode)
        return frozenset(chosen)

    def _likely(self, remote: Address) -> bool:
        """While the ranks still connect: whether this leads to where a round's connections do."""
        return remote[1] == self._store_port or remote[1] >= self._first_port


def _first_given_port() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_PORT_RANGE.read_text().split()[0])
    return _USUAL_PORT


def _free_descriptors() -> float:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if most == resource.RLIM_INFINITY else most - len(os.listdir("/proc/self/fd"))


def _sockets() -> dict[str, int]:
    """Descriptors of this process's sockets by inode, as numbers are used again."""
    return dict(_descriptors())


def _descriptors() -> Iterator[tuple[str, int]]:
    """Yields inode and number of each of this process's descriptors of a socket."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                yield target, int(name)


def _inode(end: socket.socket) -> str:
    return f"socket:[{os.fstat(end.fileno()).st_ino}]"


def _local(number: int, *, listens: bool = False) -> Address | None:
    """Return the address of a TCP socket; None for other files, or one that should listen and does
    not."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
        if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
            return None
        if listens and not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        return _address(end.getsockname())
    return None


def _remote(number: int) -> Address | None:
    """Return the address that a TCP socket is connected to; None for one that isn't."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
        return _address(end.getpeername())
    return None


def _address(name: tuple[str, int]) -> Address:
    """An IPv4 address may come as one of IPv6."""
    return name[0].removeprefix("::ffff:"), name[1]


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
