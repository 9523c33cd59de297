"""Feeder: lets newcomers follow a rank's state while it trains on.

Whoever comes gets a copy of the state as it is between two steps, made while the next step's
forward and backward pass runs, and after it what each step applies: its gradients, averaged over
the ranks. So the newcomer makes the same steps by itself. When the round ends it is told the digest
of each tensor, and sent those that differ. Nothing rests on the copy or on the steps: what a
newcomer has in the end was compared. following.py says when it asks for its place, or is sent away
to get the state as it joins.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from elastic_trainer.feed import likeness
from elastic_trainer.feed.buffers import Buffers
from elastic_trainer.feed.entrance import Entrance
from elastic_trainer.feed.following import (
    BYTES_PER_SECOND,
    Course,
    Decision,
    decide,
    wait_seconds,
)
from elastic_trainer.feed.frame import Frame, Kind
from elastic_trainer.feed.guest import Guest, Identity
from elastic_trainer.feed.pace import Pace
from elastic_trainer.feed.room import free_memory
from elastic_trainer.ranks.stream import in_callers_stream
from elastic_trainer.store.blob import Blob, lay_out

STEPS_AHEAD = 4
"""Steps that a guest may be behind, where they have more bytes than the state: it never would be
there."""
STEPS_PREPARED = 3
"""Steps for which there is memory before the first one."""
LOOK_SECONDS = 0.005
"""Between looks at whether a newcomer that a step waits for has come nearer."""
AWAY_SECONDS = 2.0
"""For so long who comes while nobody trains waits for the next round to begin."""
SYNC_SECONDS = 10.0
"""For so long at most a guest may take to say what differs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a feeder is part of, as far as it doesn't see that by itself."""

    nodes: int = 1
    """That train."""
    missed: bool = False
    """Nodes were lost that are not back yet."""
    over: Callable[[], bool] = lambda: False
    """Tells whether the round is over, so that no step waits."""


class Feeder:
    """Serves newcomers; methods are for the training's own thread.

    Args:
        host: to bind to.
        token: the job's; empty: whoever can reach it may come.
        least: bytes of a state below which it isn't worth it, so that newcomers are sent away.
        moved: called with the bytes of each piece that was sent, in a thread.
        free: returns the bytes of memory that may still be used.
    """

    def __init__(
        self,
        host: str,
        token: str,
        least: int,
        moved: Callable[[int], None],
        free: Callable[[], int] = free_memory,
    ) -> None:
        self._free = free
        self._least, self._moved = least, moved
        listener = socket.create_server((host, 0))
        self.port = int(listener.getsockname()[1])
        self._guests: list[Guest] = []
        self._lock = threading.Lock()
        self._welcomed = threading.Condition(self._lock)
        self._copying: threading.Thread | None = None
        self._buffers = Buffers()
        self._prepared: threading.Thread | None = None
        """Makes memory for the first copy and steps; None: nobody needs any."""
        self._size = 0
        """Bytes of the state."""
        self._step_size = 0
        """Bytes of a step's gradients."""
        self.pace = Pace()
        self._away = self._closed = False
        """Whoever comes is sent away, soon or at once."""
        self._entrance = Entrance(listener, token, self._let_in)

    @property
    def guests(self) -> list[Guest]:
        """Return those that are there."""
        if not self._guests:  # nearly always
            return []
        with self._lock:
            self._guests = [guest for guest in self._guests if not guest.closed]
            found = list(self._guests)
        if not found:
            self._buffers.clear()
            self._prepared = None
        return found

    def stepped(self) -> None:
        """After each step, also where nobody follows."""
        followed = any(guest.since < math.inf for guest in self.guests)
        self.pace.passed(time.monotonic(), followed=followed)

    def passed(
        self,
        take: Callable[[], Mapping[str, Any]],
        identity: Identity,
        step_bytes: int,
        job: Job | None = None,
    ) -> None:
        """Between two steps: who has come since gets a copy of the state, once there is memory for
        it, for which no step waits. Who has come near, or would cost too much, asks for a place;
        for others the next step may wait a little.

        Args:
            take: returns the state, which goes on to share its memory with the model.
            identity: of the state.
            step_bytes: of the gradients of a step.
        """
        began = time.monotonic()
        self._step_size = step_bytes
        self._begin_copy(take, identity, step_bytes)
        for guest in self.guests:
            if guest.since == math.inf:
                guest.since, guest.lost_before = began, self.pace.lost
        self._wait(job or Job())
        self.pace.kept(time.monotonic() - began)

    def _begin_copy(
        self, take: Callable[[], Mapping[str, Any]], identity: Identity, step_bytes: int
    ) -> None:
        new = [guest for guest in self.guests if guest.at is None]
        if not new:
            return
        blob = lay_out(take())
        self._size = blob.size
        if blob.size < self._least:
            for guest in new:
                guest.close()
            return
        if self._prepared is None:
            needed = blob.size + max(2 * blob.size, STEPS_AHEAD * step_bytes)
            if self._free() < needed:  # whoever takes more is killed
                log.warning(
                    "a newcomer gets the state when it joins, as copies of it and of steps may "
                    "take %d bytes of memory, and %d are free",
                    *(needed, self._free()),
                )
                for guest in new:
                    guest.close()
                return
            sizes = (blob.size, *[step_bytes] * STEPS_PREPARED)
            self._begin_to_prepare(*sizes)
        assert self._prepared is not None
        if self._prepared.is_alive():
            return
        for guest in new:
            guest.at = identity
        self.wait_for_copy()
        copy = in_callers_stream(partial(self._copy, blob, identity, new))
        self._copying = threading.Thread(target=copy, name="copy")
        self._copying.start()

    def _wait(self, job: Job) -> None:
        """Decide about each newcomer, and let the next step wait for those that follow on."""
        began = time.monotonic()
        while True:
            now = time.monotonic()
            waits = max((self._weigh(guest, now, job) for guest in self.guests), default=0.0)
            if now - began >= waits or job.over():
                return
            time.sleep(LOOK_SECONDS)

    def _weigh(self, guest: Guest, now: float, job: Job) -> float:
        """Do what is decided about a newcomer; return for how long the next step waits for it."""
        course = self._course(guest, now, job)
        decision = Decision.FOLLOW if guest.ready else decide(course)
        if decision is Decision.JOIN:
            guest.ask(behind=not course.near)
        elif decision is Decision.TAKE_WHOLE:
            log.info(
                "a newcomer gets the state as it joins: in %.1f s it has not come near, and to "
                "wait for %d bytes costs less than to follow on",
                *(course.seconds, course.state_bytes),
            )
            guest.close()
            return 0.0
        return wait_seconds(course, full=self._is_full(guest))

    def _course(self, guest: Guest, now: float, job: Job) -> Course:
        speed = guest.bytes_per_second or BYTES_PER_SECOND
        copy = 0.0
        if guest.steps_behind is None:
            made = self._buffers.seconds_left() if guest.at is None else 0.0
            copy = made + max(0, self._size - guest.copied) / speed
        return Course(
            state_bytes=self._size,
            seconds=now - guest.since,
            lost=self.pace.lost - guest.lost_before,
            staying=job.nodes,
            newcomers=len(self.guests),
            missed=job.missed,
            behind=guest.steps_behind,
            copy_seconds=copy,
            replay_seconds=guest.replay_seconds,
            step_seconds=self.pace.step_seconds,
            bytes_per_second=speed,
        )

    def _is_full(self, guest: Guest) -> bool:
        return guest.waiting + self._step_size > most_waiting(guest, self._size, self._step_size)

    def wait_for_copy(self) -> None:
        """Before the state changes: wait until it is copied."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def apply(self, change: Callable[[], Mapping[str, Any]], identity: Identity) -> None:
        """Before a step is applied: whoever follows is told what it applies.

        Args:
            change: returns gradients and whatever else the step depends on.
            identity: of the state that the step leads to.
        """
        followers = [guest for guest in self.guests if guest.at is not None]
        if not followers:
            return
        began = time.monotonic()
        self.wait_for_copy()
        blob = lay_out(change())
        copied = self._buffers.take(blob.size)
        blob.write(copied)
        prepared = self._prepared
        if prepared is not None and not prepared.is_alive() and not self._buffers.spare(blob.size):
            self._begin_to_prepare(blob.size)  # else the next step might wait for the kernel
        step = Frame(Kind.STEP, *identity, blob.skeleton, copied)
        for guest in followers:
            if guest.waiting > most_waiting(guest, self._size, step.size):
                log.warning(
                    "a newcomer can't keep up with the steps: it gets the state when it joins"
                )
                guest.close()
            guest.at = identity
            guest.put(step)
        self.pace.kept(time.monotonic() - began)

    def sync(
        self, take: Callable[[], Mapping[str, Any]], identity: Identity, seconds: float
    ) -> None:
        """Between two steps, as the round ends: bring guests that are ready to just this state.

        Args:
            take: as `passed`'s.
            identity: of the state.
            seconds: to wait for them at most.
        """
        ready = [guest for guest in self.guests if guest.ready and guest.at == identity]
        if not ready:
            return
        self.wait_for_copy()
        for guest in ready:
            guest.wanted = None
            guest.put(Frame(Kind.SYNCING))
        blob = lay_out(take())
        told = likeness.encode(likeness.likenesses(blob))
        for guest in ready:
            guest.put(Frame(Kind.SYNC, *identity, blob.skeleton, told))
        deadline = time.monotonic() + min(seconds, SYNC_SECONDS)
        for guest in ready:
            with guest.changed:
                while guest.wanted is None and not guest.closed:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        log.warning(
                            "a newcomer doesn't follow in time: it gets the state as it joins"
                        )
                        guest.close()
                        break
                    guest.changed.wait(left)
                wanted = guest.wanted
            if wanted is not None:
                patch(guest, blob, wanted, identity)

    def go_on_from(self, identity: Identity) -> None:
        """Send away who follows another state than the one that training goes on from."""
        self.welcome()
        for guest in self.guests:
            if guest.at not in (None, identity):
                guest.close()

    def send_away(self) -> None:
        """Send all away, and who comes from now on."""
        self._least = 1 << 62
        for guest in self.guests:
            guest.close()

    def send_unready_away(self) -> None:
        """Nobody trains just now, so that nobody could follow, until `welcome`; in any thread."""
        with self._lock:
            self._away = True
        for guest in self.guests:
            if not guest.ready:
                guest.close()

    def welcome(self) -> None:
        """Others train soon: who comes may follow."""
        self.pace.begin()
        with self._welcomed:
            self._away = False
            self._welcomed.notify_all()

    def close(self) -> None:
        """The state may be changed by others from now on."""
        self.wait_for_copy()
        with self._welcomed:
            self._closed = True
            self._welcomed.notify_all()
        self._entrance.close()
        for guest in self.guests:
            guest.close()

    def _begin_to_prepare(self, *sizes: int) -> None:
        self._prepared = threading.Thread(target=self._prepare, args=sizes, name="memory")
        self._prepared.daemon = True
        self._prepared.start()

    def _prepare(self, *sizes: int) -> None:
        with contextlib.suppress(MemoryError):  # said when it is used
            self._buffers.prepare(*sizes)

    def _copy(self, blob: Blob, identity: Identity, guests: Sequence[Guest]) -> None:
        try:
            copied = self._buffers.take(blob.size)
            blob.write(copied)
        except Exception as error:
            log.warning("newcomers can't have a copy of the state: %r", error)
            for guest in guests:
                guest.close()
            return
        base = Frame(Kind.BASE, *identity, blob.skeleton, copied)
        for guest in guests:
            guest.put(base)

    def _let_in(self, connection: socket.socket) -> None:
        with self._welcomed:
            self._welcomed.wait_for(lambda: self._closed or not self._away, AWAY_SECONDS)
            if not self._closed and not self._away:
                self._guests.append(Guest(connection, self._moved))
                return
        connection.close()  # else it would wait for a state, and the others perhaps for it


def most_waiting(guest: Guest, state_bytes: int, step_bytes: int) -> int:
    """Return how many bytes may be on their way to a newcomer."""
    copy = state_bytes if guest.steps_behind is None else 0
    return copy + max(2 * state_bytes, STEPS_AHEAD * step_bytes)


def patch(guest: Guest, blob: Blob, wanted: Sequence[int], identity: Identity) -> None:
    """Send a guest the tensors that it wants of a state."""
    known = range(len(blob.tensors))
    if any(one not in known for one in wanted):
        guest.close()
        return
    parts = [likeness.content(blob, one) for one in wanted]
    content = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
    guest.put(Frame(Kind.PATCH, *identity, b"", content))
