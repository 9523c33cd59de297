"""Follower: a newcomer's way to the state of those that train on."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from elastic_trainer.checkpoint.model_state import ModelState
from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.feed import frame, likeness
from elastic_trainer.feed.buffers import Buffers
from elastic_trainer.feed.frame import Frame, FrameError, Kind
from elastic_trainer.feed.likeness import Likeness
from elastic_trainer.feed.relay import GATHER_SECONDS, Relay
from elastic_trainer.store.blob import Blob, lay_out, read, read_onto

CONNECT_SECONDS = 2.0
LOOK_SECONDS = 0.05
"""Between looks at whether this node's first newcomer is there."""
MOST_AHEAD = 4
"""Frames that come before they are needed; then the sender waits."""
SETTLE_SECONDS = 3.0
"""For so long it may still follow once it has a place: others wait to connect with it."""

log = logging.getLogger(__name__)


class Follower:
    """Follows one rank's state; methods are for the training's own thread.

    Args:
        state: this process's, which is written to.
        replay: makes a step that others have made, from what Feeder.apply was told.
        moved: called with the bytes of each piece that came, in a thread.
        relay: to the other newcomers of this node.
    """

    def __init__(
        self,
        state: ModelState,
        replay: Callable[[Mapping[str, Any]], None],
        moved: Callable[[int], None],
        relay: Relay | None = None,
    ) -> None:
        self._state, self._replay, self._moved = state, replay, moved
        self._relay = relay
        self._connection: socket.socket | None = None
        self._changed = threading.Condition()
        self._frames: deque[Frame] = deque()
        self._ended = True
        self.touched = False
        """The process's state isn't its initial one any more."""
        self.told: Mapping[str, Any] = {}
        """The state, as it was told last."""
        self._at: Identity = NOTHING
        """The state that it has, if all is well."""
        self._verified: Identity = NOTHING
        self._seen = False
        """True if READY was answered: it is near enough to who is followed."""
        self._own: tuple[Blob, list[Likeness]] | None = None
        """Its state as it was when it heard that a round ends."""
        self._said: Frame | None = None
        """The SYNC of which tensors are still to come."""
        self._wanted: list[int] = []

    def begin(self, addresses: Sequence[tuple[str, int]], token: str) -> None:
        """Follow the first that answers; nobody, if none does."""
        if self._relay is not None and addresses:
            self._relay.gather()
        for address in addresses:
            try:
                connection = socket.create_connection(address, CONNECT_SECONDS)
                self._begin(connection, token)
            except OSError as error:
                log.info("%s:%d feeds no newcomers: %s", *address, error)
                continue
            return
        self._close_relay()

    def begin_behind(self, address: str, token: str) -> None:
        """Follow this node's first newcomer, once it is there.

        Args:
            address: its Relay's.
        """
        deadline = time.monotonic() + GATHER_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect("\0" + address)
                self._begin(connection, token)
            except OSError as error:
                connection.close()
                if time.monotonic() > deadline:
                    log.info("this node's first newcomer hands nothing on: %s", error)
                    return
                time.sleep(LOOK_SECONDS)
                continue
            return

    def _begin(self, connection: socket.socket, token: str) -> None:
        frame.prepare(connection)
        connection.settimeout(frame.SILENCE_SECONDS)
        connection.sendall(frame.hello(token))
        self._connection, self._ended = connection, False
        reading = threading.Thread(target=self._read, args=(connection,), name="feed")
        reading.daemon = True
        reading.start()

    @property
    def ready(self) -> bool:
        """Return whether it may ask for a place: it has followed so far, or follows nobody."""
        return self._seen or self._connection is None

    def follow(self, seconds: float) -> bool:
        """Take in what comes within that time; return whether there is anybody to follow."""
        with self._changed:
            if not self._frames and not self._ended:
                self._changed.wait(seconds)
            if self._ended and self._frames and not self._leads_somewhere():
                self._frames.clear()
                self._verified = NOTHING
            next_ = self._frames.popleft() if self._frames else None
            self._changed.notify_all()
        if next_ is not None:
            self._take(next_)
        elif self._ended and self._connection is not None:
            self._leave()
        return self._connection is not None

    def _leads_somewhere(self) -> bool:
        """Return whether what has come leads to a state that is compared."""
        return any(one.kind is Kind.PATCH for one in self._frames)

    def settle(self) -> Identity:
        """Return which state this process has, once it has its place; NOTHING: none."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._connection is not None and time.monotonic() < deadline:
            if self._verified != NOTHING and self._verified == self._at and not self._frames:
                break
            self.follow(0.05)
        verified = self._verified if self._verified == self._at else NOTHING
        self._leave()
        self._verified = NOTHING
        return verified

    def _take(self, came: Frame) -> None:
        began = time.monotonic()
        try:
            self._handle(came)
            if came.kind in (Kind.BASE, Kind.STEP):
                with contextlib.suppress(OSError):  # the thread that reads hears of it, too
                    self._answer(Frame(Kind.READY, *self._at))
        except Exception as error:  # the script's own apply may raise anything
            log.warning(
                "step %d could not be followed, so the whole state is taken in the next round: %r",
                came.step,
                error,
            )
            self._leave()
            return
        log.debug("%s of step %d: %.3f s", came.kind.name, came.step, time.monotonic() - began)

    def _handle(self, came: Frame) -> None:
        if came.kind is Kind.READY_SEEN:
            self._seen = True
        elif came.kind is Kind.BASE:
            self.touched = True
            self._state.give(read(came.skeleton, came.tensors.numpy().data))
            self._at = came.run, came.step
        elif came.kind is Kind.STEP:
            if came.step != self._at[1] + 1:
                raise FrameError(f"expected step {self._at[1] + 1}, found {came.step}")
            self._verified = NOTHING
            self._replay(read(came.skeleton, came.tensors.numpy().data))
            self._at = came.run, came.step
        elif came.kind is Kind.SYNCING:
            blob = lay_out(self._state.take())
            self._own = blob, likeness.likenesses(blob)
        elif came.kind is Kind.SYNC:
            self._compare(came)
        elif came.kind is Kind.PATCH:
            self._patch(came)
        else:
            raise FrameError(f"expected a state or a step, found {came.kind.name}")

    def _compare(self, said: Frame) -> None:
        if self._own is None or self._at != (said.run, said.step):
            raise FrameError(f"expected a word of state {self._at}, found {said.run, said.step}")
        differ = likeness.differing(self._own[1], likeness.decode(said.tensors))
        if differ is None:
            raise FrameError("the state is laid out in another way than here")
        self._said, self._wanted = said, differ
        if sizes := [self._own[1][place].size for place in differ]:
            log.info("%d tensors of %d bytes are taken as they are", len(sizes), sum(sizes))
        numbers = torch.tensor(differ, dtype=torch.int64).view(torch.uint8)
        self._answer(Frame(Kind.WANT, tensors=numbers))

    def _patch(self, came: Frame) -> None:
        said, own = self._said, self._own
        if said is None or own is None:
            raise FrameError("expected no tensors that were not asked for")
        blob, known = own
        memory = {(one.offset, one.size): place for place, one in enumerate(known)}
        taken: dict[int, torch.Tensor] = {}
        begin = 0
        for place in self._wanted:
            size = known[place].size
            taken[place] = came.tensors[begin : begin + size]
            begin += size
        if begin != len(came.tensors):
            raise FrameError(f"expected {begin} bytes of tensors, found {len(came.tensors)}")
        for place, content in taken.items():
            target = blob.tensors[place][1]
            # A copy begins at a multiple of any dtype's size.
            target.copy_(content.clone().view(target.dtype).view(target.shape))
        tensors = {
            key: blob.tensors[place][1].contiguous().reshape(-1).view(torch.uint8)
            for key, place in memory.items()
        }
        self.told = read_onto(said.skeleton, blob.size, tensors)
        self._state.adopt(self.told)
        self._verified = said.run, said.step
        self._own = self._said = None
        if self._relay is not None:
            self._relay.serve(blob, said)

    def _answer(self, answer: Frame) -> None:
        assert self._connection is not None
        frame.send(self._connection, answer, lambda _: None)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._close_relay()
        with self._changed:
            self._ended = True
            self._frames.clear()
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _close_relay(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()

    def _read(self, connection: socket.socket) -> None:
        relay, buffers = self._relay, Buffers()
        try:
            while came := frame.receive(connection, self._moved, memory=buffers.take):
                if relay is not None:
                    relay.hand_on(came)
                if came.kind is Kind.JOIN_BEHIND:  # before the steps that it is yet to make
                    with self._changed:
                        self._seen = True
                        self._changed.notify_all()
                    continue
                with self._changed:
                    while len(self._frames) >= MOST_AHEAD and not self._ended:
                        self._changed.wait()
                    if self._ended:
                        return
                    self._frames.append(came)
                    self._changed.notify_all()
        except (OSError, FrameError, MemoryError) as error:
            log.info("the feed has ended: %s", error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            connection.close()
