"""A relay between processes, over which nothing comes for a while, though no connection ends."""

from __future__ import annotations

import contextlib
import socket
import threading

TO_TARGET, BACK = "to the target", "back"
WAYS = (TO_TARGET, BACK)


class Relay:
    """Connects whoever comes to `address` with the target, as a network does that may be cut: then
    bytes wait, those on their way as well as new ones, and new connections, too.

    Args:
        target: host:port.
    """

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._left: dict[str, float] = dict.fromkeys(WAYS, float("inf"))
        """By way, bytes that still get through."""
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *ways: str, after: int = 0) -> None:
        """Let nothing through any of these ways, once so many bytes have gone there."""
        with self._changed:
            self._left.update(dict.fromkeys(ways or WAYS, after))

    def wait_until_cut(self, way: str, seconds: float) -> None:
        """Wait until the bytes that `cut` let through have gone."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._left[way] == 0, seconds)

    def heal(self) -> None:
        with self._changed:
            self._left = dict.fromkeys(WAYS, float("inf"))
            self._changed.notify_all()

    def close(self) -> None:
        self.heal()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target, timeout=10)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._sockets += [near, far]
                for source, target, way in ((near, far, TO_TARGET), (far, near, BACK)):
                    carry = (source, target, way)
                    threading.Thread(target=self._carry, args=carry, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                while content:
                    count = self._allowed(way, len(content))
                    target.sendall(content[:count])
                    content = content[count:]
            target.shutdown(socket.SHUT_WR)

    def _allowed(self, way: str, count: int) -> int:
        """Return how many of these bytes may go now, one at least, once any may."""
        with self._changed:
            self._changed.wait_for(lambda: self._left[way] > 0)
            allowed = int(min(count, self._left[way]))
            self._left[way] -= allowed
            self._changed.notify_all()
            return allowed
