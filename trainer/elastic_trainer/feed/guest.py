"""Guest: a newcomer that follows, as the rank that feeds it sees it."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

import torch

from elastic_trainer.feed import frame
from elastic_trainer.feed.following import NEAR
from elastic_trainer.feed.frame import Frame, FrameError, Kind
from elastic_trainer.protocol.auth import check_token

Identity = tuple[int, int]

REPLAYS = 3
"""The last steps that it made again, by which it is told how long one takes."""
MEASURED = 1 << 25
MEASURED_SECONDS = 1.0
"""The fewest bytes of a copy by which it is told how fast they reach it, unless they took so long:
the first ones are in the kernel's buffers at once."""

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
        self.since = math.inf
        """When it might have asked for a place first."""
        self.lost_before = 0.0
        """Seconds that steps had lost for newcomers by then."""
        self._said: int | None = None
        """The step that it said to have followed to; None: it has no state yet."""
        self._said_at: float | None = None
        """When, if there was a step for it to make again already."""
        self._replays: deque[float] = deque(maxlen=REPLAYS)
        """Seconds that it took for each."""
        self.copied = 0
        """Bytes of the copy of a state that were sent."""
        self._copy_began = self._copied_at = 0.0
        """When the first of them were sent, and the last."""
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
                frame.send(self._connection, next_, self._measure(next_))
                with self.changed:
                    self.waiting -= next_.size
                    self.changed.notify_all()
        except OSError as error:
            log.info("a newcomer that was fed has gone: %s", error)
        finally:
            self.close()

    def _measure(self, sent: Frame) -> Callable[[int], None]:
        """Return what is called with the bytes of each piece of a frame."""
        if sent.kind is not Kind.BASE:
            return self._moved
        self._copy_began = time.monotonic()

        def moved(count: int) -> None:
            self.copied += count
            self._copied_at = time.monotonic()
            self._moved(count)

        return moved

    def ask(self, *, behind: bool = False) -> None:
        """Have it ask for a place once it has made the steps that are on their way to it.

        Args:
            behind: before it has made them.
        """
        with self.changed:
            if self.ready or self.closed:
                return
            self.ready = True
            if behind:
                self._queue.appendleft(Frame(Kind.JOIN_BEHIND))
            else:
                self._queue.append(Frame(Kind.READY_SEEN))
            self.changed.notify_all()

    def _hear(self) -> None:
        try:
            while (
                said := frame.receive(self._connection, _ignore, frame.ANSWER_BYTES)
            ) is not None:
                with self.changed:
                    if said.kind is Kind.READY:
                        self._followed(said.step, time.monotonic())
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

    def _followed(self, step: int, now: float) -> None:
        if self._said_at is not None:
            self._replays.append(now - self._said_at)
        self._said = step
        self._said_at = now if self.behind else None  # else it waits for the next one
        if self.behind <= NEAR:
            self.ask()

    @property
    def behind(self) -> int:
        """Return how many steps it is behind those that were queued; 0 where it has no state."""
        return self.steps_behind or 0

    @property
    def steps_behind(self) -> int | None:
        """Return how many steps it is behind; None: it has no state yet."""
        return None if self.at is None or self._said is None else self.at[1] - self._said

    @property
    def replay_seconds(self) -> float:
        """Return in how many seconds it makes a step again; 0: unknown."""
        with self.changed:
            return median(self._replays) if self._replays else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Return how fast it has taken the copy of a state; 0: unknown."""
        return measure_speed(self.copied, self._copied_at - self._copy_began)


def measure_speed(count: int, seconds: float) -> float:
    """Return bytes per second; 0 where there are too few to tell."""
    enough = count >= MEASURED or seconds >= MEASURED_SECONDS
    return count / seconds if enough and seconds > 0.0 else 0.0


def _ignore(_: int) -> None:
    return
