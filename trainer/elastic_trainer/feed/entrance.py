"""Entrance: takes in who connects to a listener and says the job's token."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from elastic_trainer.feed.guest import lets_in

MOST = 32
"""Connections, each with a thread, that have not said the token; others wait to be accepted."""
AGAIN_SECONDS = 0.2
"""Between tries to accept, where this process has no descriptor left for it."""

log = logging.getLogger(__name__)


class Entrance:
    """Owns the listener, and a thread for it.

    Args:
        listener: of connections.
        token: the job's; empty: whoever can reach it may come.
        admit: called with each connection that said it, in a thread; the connection is then its.
    """

    def __init__(
        self, listener: socket.socket, token: str, admit: Callable[[socket.socket], None]
    ) -> None:
        self._listener, self._token, self._admit = listener, token, admit
        self._room = threading.BoundedSemaphore(MOST)
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="newcomers", daemon=True).start()

    def close(self) -> None:
        """Let in nobody more."""
        self._closed.set()
        with contextlib.suppress(OSError):  # else the thread would go on to wait there
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        told = False
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                if not told:
                    log.warning("newcomers wait, as none can be let in just now: %s", error)
                told = True
                self._closed.wait(AGAIN_SECONDS)
                continue
            told = False
            # Who says nothing is sent away, so there is room before long.
            self._room.acquire()
            threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: socket.socket) -> None:
        try:
            known = lets_in(connection, self._token)
        finally:
            self._room.release()
        if known:
            self._admit(connection)
