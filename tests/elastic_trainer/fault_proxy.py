"""A TCP proxy that delays, swallows and cuts, as networks do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Passes connections on to a port of an address.

    `delay` holds each piece back so many seconds; while `open` isn't set nothing passes, and
    nobody is told; `cut` resets what is connected.
    """

    def __init__(self, target: tuple[str, int], listens: tuple[str, int]) -> None:
        self.delay = 0.0
        self.open = threading.Event()
        self.open.set()
        self._target = target
        self._listener = socket.create_server(listens)
        self.port = int(self._listener.getsockname()[1])
        self._ends: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.open.set()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.open.wait()
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._ends |= {client, server}
        there = threading.Thread(target=self._pass, args=(client, server), daemon=True)
        there.start()
        self._pass(server, client)
        there.join()
        self._ends -= {client, server}
        client.close()
        server.close()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                self.open.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
