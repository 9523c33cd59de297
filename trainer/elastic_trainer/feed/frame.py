"""Frames of a feed, as they go over a connection between a rank that trains and a newcomer.

newcomer  a line of JSON: the feed's version and the job's token
rank      BASE        a state, laid out as blob.py says
          STEP        what a step applied: gradients, and what the optimizers were set to
          READY_SEEN  it is near enough, and may ask for a place
          JOIN_BEHIND it may, at once: what it is behind, all wait for
          SYNCING     the round ends here, and SYNC will follow: time to make digests
          SYNC        the state's skeleton, and the digest of each tensor
          PATCH       the tensors that WANT asked for, one after another
newcomer  READY       it has followed up to this state, after BASE and each STEP
          WANT        numbers of tensors that differ
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import torch

VERSION = 3
PIECE = 1 << 22
"""Bytes that are sent or taken at once."""
SILENCE_SECONDS = 10.0
"""For so long at most a frame may be under way without a byte that moves."""
HELLO_BYTES = 4096
ANSWER_BYTES = 1 << 24
"""Most bytes of a newcomer's frame."""

_HEADER = struct.Struct("<Bqqqq")


class FrameError(Exception):
    """Raised where what came is no frame of a feed."""


class Kind(IntEnum):
    BASE = 1
    STEP = 2
    READY = 3
    READY_SEEN = 4
    SYNCING = 5
    SYNC = 6
    WANT = 7
    PATCH = 8
    JOIN_BEHIND = 9


def _no_tensors() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    run: int = 0
    step: int = 0
    """State that it is, of BASE, SYNC and READY; of STEP the one that it leads to."""
    skeleton: bytes = b""
    tensors: torch.Tensor = field(default_factory=_no_tensors)
    """Bytes (uint8), in memory of the CPU."""

    @property
    def size(self) -> int:
        return len(self.skeleton) + len(self.tensors)


def send(connection: socket.socket, frame: Frame, moved: Callable[[int], None]) -> None:
    """Send a frame.

    Args:
        moved: called with the bytes of each piece.

    Raises:
        OSError: the other end has gone, or takes nothing for SILENCE_SECONDS.
    """
    sizes = len(frame.skeleton), len(frame.tensors)
    header = _HEADER.pack(frame.kind, frame.run, frame.step, *sizes)
    connection.sendall(header + frame.skeleton)
    content = frame.tensors.numpy().data
    for begin in range(0, len(content), PIECE):
        piece = content[begin : begin + PIECE]
        connection.sendall(piece)
        moved(len(piece))


def receive(
    connection: socket.socket,
    moved: Callable[[int], None],
    most: int | None = None,
    memory: Callable[[int], torch.Tensor] = lambda size: torch.empty(size, dtype=torch.uint8),
) -> Frame | None:
    """Return the next frame, for which it waits as long as it takes; None where there is none.

    Args:
        moved: called with the bytes of each piece.
        most: bytes of a frame; None: as it says.
        memory: returns so many bytes (uint8) for its tensors.

    Raises:
        FrameError: it isn't one.
        OSError: the other end has gone in the midst of it.
    """
    header = bytearray(_HEADER.size)
    connection.settimeout(None)
    if not connection.recv_into(memoryview(header)[:1]):
        return None
    connection.settimeout(SILENCE_SECONDS)
    _fill(connection, memoryview(header)[1:])
    kind, run, step, skeleton_size, size = _HEADER.unpack(header)
    if kind not in Kind.__members__.values() or skeleton_size < 0 or size < 0:
        raise FrameError(f"expected a frame of a feed, found kind {kind} of {size} bytes")
    if most is not None and skeleton_size + size > most:
        raise FrameError(f"expected {most} bytes at most, found {skeleton_size + size}")
    skeleton = bytearray(skeleton_size)
    _fill(connection, memoryview(skeleton))
    tensors = memory(size)
    content = tensors.numpy().data
    for begin in range(0, size, PIECE):
        piece = content[begin : begin + PIECE]
        _fill(connection, piece)
        moved(len(piece))
    return Frame(Kind(kind), run, step, bytes(skeleton), tensors)


def _fill(connection: socket.socket, target: memoryview) -> None:
    """Raises OSError where the connection ends before."""
    while target:
        count = connection.recv_into(target)
        if not count:
            raise ConnectionResetError("the feed ended in the midst of a frame")
        target = target[count:]


def prepare(connection: socket.socket) -> None:
    """Have a connection notice within SILENCE_SECONDS that the other end's machine is gone."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    milliseconds = int(SILENCE_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def hello(token: str) -> bytes:
    """Return a newcomer's first line."""
    return json.dumps({"feed": VERSION, "token": token}).encode() + b"\n"


def read_hello(connection: socket.socket) -> str:
    """Return the token in a newcomer's first line.

    Raises:
        FrameError: it isn't one, or another version's.
        OSError: the other end has gone, or hasn't said it within SILENCE_SECONDS.
    """
    line = b""
    deadline = time.monotonic() + SILENCE_SECONDS
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if len(line) > HELLO_BYTES or not (byte := connection.recv(1)):
            raise FrameError(f"expected a line of at most {HELLO_BYTES} bytes, found {line[:80]!r}")
        line += byte
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise FrameError(f"expected a JSON object, found {line[:80]!r}") from None
    if not isinstance(said, dict) or said.get("feed") != VERSION:
        raise FrameError(f"expected version {VERSION} of the feed, found another")
    return str(said.get("token", ""))
