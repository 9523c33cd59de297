"""Relay: a node's first newcomer hands on to its others what it follows: it comes once a node."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence

from elastic_trainer.feed.entrance import Entrance
from elastic_trainer.feed.feeder import most_waiting, patch
from elastic_trainer.feed.frame import Frame, Kind
from elastic_trainer.feed.guest import Guest
from elastic_trainer.store.blob import Blob

GATHER_SECONDS = 10.0
"""For so long the others of the node are waited for before the state is asked for."""
SERVE_SECONDS = 2.0
"""For so long at most they may take to say what differs, and to take it."""
_HANDED_ON = (Kind.BASE, Kind.STEP, Kind.SYNCING, Kind.SYNC)

log = logging.getLogger(__name__)


class Relay:
    """Serves the other newcomers of this node.

    Args:
        address: of a socket in Linux's abstract namespace, less its leading NUL.
        expected: how many may come.
        token: the job's.
    """

    def __init__(self, address: str, expected: int, token: str) -> None:
        self._expected = expected
        self._guests: list[Guest] = []
        self._size = 0
        """Bytes of the state."""
        self._came = threading.Condition()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind("\0" + address)
            listener.listen(expected)
        except OSError:
            listener.close()
            raise
        self._entrance = Entrance(listener, token, self._let_in)

    def gather(self) -> None:
        """Wait until all have come; who comes later finds nobody."""
        deadline = time.monotonic() + GATHER_SECONDS
        with self._came:
            while len(self._guests) < self._expected and (left := deadline - time.monotonic()) > 0:
                self._came.wait(left)
        self._entrance.close()

    def hand_on(self, came: Frame) -> None:
        """In the thread that follows. A node's newcomers ask for their places together."""
        if came.kind is Kind.BASE:
            self._size = came.size
        if came.kind in (Kind.READY_SEEN, Kind.JOIN_BEHIND):
            for guest in self._present():
                guest.ask(behind=came.kind is Kind.JOIN_BEHIND)
        if came.kind in _HANDED_ON:
            for guest in self._present():
                if guest.waiting > most_waiting(guest, self._size, came.size):
                    log.warning("one of this node's newcomers can't keep up with the steps")
                    guest.close()
                if came.kind in (Kind.BASE, Kind.STEP):
                    guest.at = came.run, came.step
                guest.put(came)

    def serve(self, blob: Blob, said: Frame) -> None:
        """Give them what differs from the state that this process has just come to.

        Args:
            blob: of that state.
            said: the word of it.
        """
        deadline = time.monotonic() + SERVE_SECONDS
        for guest in self._present():
            with guest.changed:
                while guest.wanted is None and not guest.closed:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        guest.close()
                        break
                    guest.changed.wait(left)
                wanted, guest.wanted = guest.wanted, None
            if wanted is not None:
                patch(guest, blob, wanted, (said.run, said.step))

    def close(self) -> None:
        """Once they have taken what is on its way."""
        self._entrance.close()
        deadline = time.monotonic() + SERVE_SECONDS
        for guest in self._present():
            with guest.changed:
                while guest.waiting and not guest.closed:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        break
                    guest.changed.wait(left)
            guest.close()

    def _present(self) -> Sequence[Guest]:
        with self._came:
            return [guest for guest in self._guests if not guest.closed]

    def _let_in(self, connection: socket.socket) -> None:
        with self._came:
            self._guests.append(Guest(connection, lambda _: None))
            self._came.notify_all()
