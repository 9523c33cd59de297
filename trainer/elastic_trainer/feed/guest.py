"""Guest: a newcomer that follows, as the rank that feeds it sees it."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

import torch

from elastic_trainer.feed import frame
from elastic_trainer.feed.frame import Frame, FrameError, Kind
from elastic_trainer.protocol.auth import check_token

Identity = tuple[int, int]

NEAR = 1
"""Steps that a newcomer may be behind when it asks for a place: what it is behind then, the others
wait for as it joins."""
PATIENCE = 16
"""Steps in which it comes no nearer until it may ask as far behind as it is."""

log = logging.getLogger(__name__)


def lets_in(connection: socket.socket, token: str) -> bool:
    """Return whether who has connected says the job's token; else the connection is closed.

    Args:
        token: the job's; empty: it has none.
    """
    try:
        frame.prepare(connection)
        connection.settimeout(frame.SILENCE_SECONDS)
        refusal = check_token(token, frame.read_hello(connection))
        if refusal is not None:
            raise FrameError(refusal)
    except (OSError, FrameError, ValueError) as error:
        log.warning("refused who wanted to follow: %s", error)
        connection.close()
        return False
    return True


class Guest:
    """One connection, with a thread for each way.

    Args:
        connection: to a newcomer that was let in.
        moved: called with the bytes of each piece that was sent, in a thread.
    """

    def __init__(self, connection: socket.socket, moved: Callable[[int], None]) -> None:
        self._connection = connection
        self._moved = moved
        self.changed = threading.Condition()
        self.at: Identity | None = None
        """The state to which what was queued leads; None: nothing was yet."""
        self.ready = False
        """It has followed up to some moment, and goes on to follow."""
        self.wanted: list[int] | None = None
        """The answer to the last SYNC; None: there is none yet."""
        self.closed = False
        self._said: int | None = None
        """The step that it said to have followed to; None: it has no state yet."""
        self._were_behind: deque[int] = deque(maxlen=PATIENCE + 1)
        """Steps that it was behind as it said so."""
        self._queue: deque[Frame] = deque()
        self.waiting = 0
        """Bytes that are queued."""
        for name, run in (("feed", self._send_all), ("feed answers", self._hear)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def put(self, *frames: Frame) -> None:
        with self.changed:
            if not self.closed:
                self._queue.extend(frames)
                self.waiting += sum(one.size for one in frames)
                self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self._queue.clear()
            self.changed.notify_all()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _send_all(self) -> None:
        try:
            while True:
                with self.changed:
                    while not self._queue and not self.closed:
                        self.changed.wait()
                    if self.closed:
                        return
                    next_ = self._queue.popleft()
                frame.send(self._connection, next_, self._moved)
                with self.changed:
                    self.waiting -= next_.size
                    self.changed.notify_all()
        except OSError as error:
            log.info("a newcomer that was fed has gone: %s", error)
        finally:
            self.close()

    def _hear(self) -> None:
        try:
            while (
                said := frame.receive(self._connection, _ignore, frame.ANSWER_BYTES)
            ) is not None:
                with self.changed:
                    if said.kind is Kind.READY:
                        self._said = said.step
                        if not self.ready and self._near():
                            self.ready = True
                            self._queue.append(Frame(Kind.READY_SEEN))
                    elif said.kind is Kind.WANT:
                        self.wanted = said.tensors.view(torch.int64).tolist()
                    else:
                        raise FrameError(f"expected READY or WANT, found {said.kind.name}")
                    self.changed.notify_all()
        except (OSError, FrameError, RuntimeError) as error:
            log.info("a newcomer that was fed has gone: %s", error)
        finally:
            self.close()
            self._connection.close()

    @property
    def behind(self) -> int:
        """Return how many steps it is behind those that were queued; 0 where it has no state."""
        return 0 if self.at is None or self._said is None else self.at[1] - self._said

    def _near(self) -> bool:
        """Return whether it is near enough to ask for a place, or comes no nearer."""
        self._were_behind.append(self.behind)
        waited = len(self._were_behind) > PATIENCE
        return self.behind <= NEAR or (waited and self.behind >= self._were_behind[0])


def _ignore(_: int) -> None:
    return
