"""State from one rank to those that lack it, along a chain of nodes, over the round's group.

A rank hands each piece on as it comes; ranks of one node share the memory that their first one
receives into. What travels, from rank to rank:

    turn      that the giver has begun, where control messages have a group of their own
    frame     of FRAME bytes: bytes of the skeleton, bytes of the tensors, how many bounds of spans;
              and if there is room in it for all that follows, that too, with the spans' bytes
    skeleton  see blob.py
    bounds    where each span begins and ends
    pieces    the spans' bytes

To a mate: turn, frame, skeleton, and where the memory is. It answers whether it could map it, and
is told once all pieces are there; one that couldn't gets bounds and pieces instead.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from elastic_trainer.checkpoint.chain import Relay
from elastic_trainer.checkpoint.messages import Messages
from elastic_trainer.store.blob import Blob, lay_out, read

TOGETHER = 1 << 20
"""Bytes. Neighbouring tensors smaller than this travel as one span."""
LARGEST = 1 << 26
"""Bytes of one span."""
PIECE = 1 << 20
"""Bytes of one message. The last of n nodes is n - 1 of them behind the first."""
FRAME = 1 << 18
"""Bytes of the first message. gloo asks for each one before it is sent, and on busy machines each
such way there and back takes milliseconds for which all ranks wait."""
_SIZES_BYTES = 3 * 8


class _Head(NamedTuple):
    skeleton: torch.Tensor
    size: int
    """Bytes of the tensors' part."""
    spans: torch.Tensor
    """Beginning and end of each, by turns."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        return len(self.skeleton), self.size, len(self.spans)

    @property
    def fits(self) -> bool:
        """Return whether the first message has room for all there is."""
        length, size, bounds = self.sizes
        return _SIZES_BYTES + length + 8 * bounds + size <= FRAME

    def cut(self, tensors: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield each message's place in the tensors' part."""
        bounds = self.spans.tolist()
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            for begin in range(start, stop, PIECE):
                yield tensors[begin : min(begin + PIECE, stop)]


def _never() -> bool:
    return False


def give(
    state: Any,
    relay: Relay,
    moved: Callable[[int], None] = lambda _: None,
    over: Callable[[], bool] = _never,
) -> None:
    """Hand `state` (nested dicts, lists and tensors) to the next rank of the chain.

    Args:
        moved: called with the bytes of each message once it is sent.
        over: tells whether the round is over, so that nobody may take it.

    Raises:
        RuntimeError: a peer was lost, or the round is over.
    """
    if relay.next is None:
        return
    blob = lay_out(state)
    skeleton = torch.frombuffer(bytearray(blob.skeleton), dtype=torch.uint8)
    spans = _spans(blob)
    head = _Head(skeleton, blob.size, torch.tensor(spans, dtype=torch.int64).reshape(-1))
    messages = Messages(moved)
    following = relay.next

    def run() -> None:
        messages.tell_turn(following)
        if head.fits:
            messages.send(_frame(head, _contents(blob, spans)), following)
            messages.flush()
            return
        _send_head(messages, head, following)
        messages.send(head.spans, following)
        for content in _contents(blob, spans):
            ready = content.to(messages.device)
            for begin in range(0, len(ready), PIECE):
                messages.send(ready[begin : begin + PIECE], following)
        messages.flush()

    messages.run(run, over)


def take(
    relay: Relay,
    moved: Callable[[int], None] = lambda _: None,
    over: Callable[[], bool] = _never,
) -> Any:
    """Return the state that comes along the chain, and hand it on. Its memory is this rank's own to
    write to.

    Args:
        moved: called with the bytes of each message that came or went.
        over: tells whether the round is over, so that nothing may come any more.

    Raises:
        BlobError: that isn't a state.
        RuntimeError: a peer was lost, or the round is over.
    """
    assert relay.source is not None, "the giver takes nothing"
    messages = Messages(moved)
    source = relay.source
    skeleton, tensors = messages.run(
        lambda: _take_shared(messages, source) if relay.shares else _pass_on(messages, relay), over
    )
    return read(skeleton.numpy().tobytes(), tensors.numpy().data)


def _pass_on(messages: Messages, relay: Relay) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a state and hand it on, piece by piece; return its skeleton and its tensors' part."""
    assert relay.source is not None
    source, following, mates = relay.source, relay.next, relay.mates
    messages.take_turn(source)
    if following is not None:
        messages.tell_turn(following)
    frame = messages.take(torch.empty(FRAME, dtype=torch.uint8), source)
    if (whole := _read_frame(frame)) is not None:
        for mate in mates:
            messages.tell_turn(mate)
        for rank in mates if following is None else (following, *mates):
            messages.send(frame, rank)
        messages.flush()
        return whole
    head = _take_head(messages, frame, source)
    messages.take(head.spans, source)
    if following is not None:
        _send_head(messages, head, following)
        messages.send(head.spans, following)
    memory = _SharedMemory.make(head.size) if mates else None
    tensors = memory.tensors if memory is not None else torch.empty(head.size, dtype=torch.uint8)
    place = memory.place if memory is not None else _NOWHERE
    for mate in mates:
        messages.tell_turn(mate)
        _send_head(messages, head, mate)
        messages.send(torch.tensor(place), mate)
    messages.flush()
    shared = {mate for mate in mates if messages.take(torch.empty(1, dtype=torch.uint8), mate)[0]}
    for piece in messages.take_all(head.cut(tensors), source):
        if following is not None:
            messages.send(piece, following)
    for mate in mates:
        if mate in shared:
            messages.send(_DONE, mate)
            continue
        messages.send(head.spans, mate)
        for piece in head.cut(tensors):
            messages.send(piece, mate)
    messages.flush()
    if memory is not None:
        tensors = memory.keep()
    return head.skeleton, tensors


def _take_shared(messages: Messages, source: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a state by mapping the memory that another rank of this node receives it into."""
    messages.take_turn(source)
    frame = messages.take(torch.empty(FRAME, dtype=torch.uint8), source)
    if (whole := _read_frame(frame)) is not None:
        return whole
    head = _take_head(messages, frame, source)
    place = messages.take(torch.empty(4, dtype=torch.int64), source).tolist()
    tensors = _map_shared(head.size, *place)
    messages.send(torch.tensor([tensors is not None], dtype=torch.uint8), source)
    messages.flush()
    if tensors is not None:
        messages.take(_DONE.clone(), source)
        return head.skeleton, tensors
    messages.take(head.spans, source)
    tensors = torch.empty(head.size, dtype=torch.uint8)
    for _ in messages.take_all(head.cut(tensors), source):
        pass
    return head.skeleton, tensors


_DONE = torch.zeros(1, dtype=torch.uint8)
"""Tells a mate that all is in the memory they share."""
_NOWHERE = (0, -1, 0, 0)
"""In place of where the memory is: it can't be shared."""


def _frame(head: _Head, contents: Iterable[torch.Tensor] = ()) -> torch.Tensor:
    """Return the first message.

    Args:
        contents: of the spans, used where all fits; else it has sizes alone.
    """
    parts = [torch.tensor(head.sizes).view(torch.uint8)]
    if head.fits:
        parts += [head.skeleton, head.spans.view(torch.uint8), *(one.cpu() for one in contents)]
    frame = torch.zeros(FRAME, dtype=torch.uint8)
    torch.cat(parts, out=frame[: sum(len(one) for one in parts)])
    return frame


def _read_frame(frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return skeleton and tensors' part, where the first message has both."""
    length, size, bounds = frame[:_SIZES_BYTES].view(torch.int64).tolist()
    head = _Head(
        frame[_SIZES_BYTES : _SIZES_BYTES + length], size, torch.empty(bounds, dtype=torch.int64)
    )
    if not head.fits:
        return None
    at = _SIZES_BYTES + length
    # A copy begins at a multiple of any dtype's size.
    spans = frame[at : at + 8 * bounds].clone().view(torch.int64).tolist()
    at += 8 * bounds
    tensors = torch.empty(size, dtype=torch.uint8)
    for begin, end in zip(spans[::2], spans[1::2], strict=True):
        tensors[begin:end].copy_(frame[at : at + end - begin])
        at += end - begin
    return head.skeleton, tensors


def _send_head(messages: Messages, head: _Head, rank: int) -> None:
    messages.send(_frame(head), rank)
    messages.send(head.skeleton, rank)


def _take_head(messages: Messages, frame: torch.Tensor, rank: int) -> _Head:
    """Take a head whose first message came; its spans are yet to come."""
    length, size, bounds = frame[:_SIZES_BYTES].view(torch.int64).tolist()
    skeleton = messages.take(torch.empty(length, dtype=torch.uint8), rank)
    return _Head(skeleton, size, torch.empty(bounds, dtype=torch.int64))


class _SharedMemory:
    """Memory of this process that others of its user on this node can map.

    Not a file in /dev/shm, which may be small, and which a process that is killed leaves behind.
    """

    def __init__(self, size: int) -> None:
        self._size = max(size, 1)
        self._file = os.memfd_create("state", os.MFD_CLOEXEC)
        os.truncate(self._file, self._size)
        found = os.fstat(self._file)
        self.place = (os.getpid(), self._file, found.st_dev, found.st_ino)
        """Where others find it, and how they know it."""
        self.tensors = torch.frombuffer(mmap.mmap(self._file, self._size), dtype=torch.uint8)[:size]

    @classmethod
    def make(cls, size: int) -> _SharedMemory | None:
        """Return None where there is none to be had."""
        try:
            return cls(size)
        except OSError:
            return None

    def keep(self) -> torch.Tensor:
        """Return its content, as this process's own to write to; nobody may map it any more."""
        kept = _map_private(self._file, self._size)[: len(self.tensors)]
        os.close(self._file)
        return kept


def _map_shared(size: int, pid: int, number: int, device: int, inode: int) -> torch.Tensor | None:
    """Return another process's memory, as this one's own to write to; None where it can't be had,
    as that process is in another container."""
    try:
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != (device, inode):
            return None
        return _map_private(file, max(size, 1))[:size]
    except OSError:
        return None
    finally:
        os.close(file)


def _map_private(file: int, size: int) -> torch.Tensor:
    """Return a file's content, shared with others until it is written to."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    return torch.frombuffer(
        mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=protection), dtype=torch.uint8
    )


def _spans(blob: Blob) -> list[tuple[int, int]]:
    """Return where each span begins and ends: a large tensor is one or several, neighbouring small
    ones are one together."""
    spans: list[tuple[int, int]] = []
    grows = False
    for offset, tensor in blob.tensors:
        size = tensor.numel() * tensor.element_size()
        small = size < TOGETHER
        if small and grows and offset + size - spans[-1][0] <= LARGEST:
            spans[-1] = (spans[-1][0], offset + size)
        else:
            ends = range(offset, offset + size, LARGEST)
            spans += [(begin, min(begin + LARGEST, offset + size)) for begin in ends]
        grows = small
    return spans


def _contents(blob: Blob, spans: Sequence[tuple[int, int]]) -> Iterator[torch.Tensor]:
    """Yield the bytes of each span: a large tensor's from where it is, small ones' gathered."""
    pieces = blob.pieces()
    offset, piece = 0, torch.empty(0, dtype=torch.uint8)
    for begin, end in spans:
        if offset + len(piece) <= begin:
            offset, piece = next(pieces)
        if end <= offset + len(piece):
            yield piece[begin - offset : end - offset]
            continue
        together = torch.empty(end - begin, dtype=torch.uint8)
        while True:
            together[offset - begin : offset - begin + len(piece)].copy_(piece)
            if offset + len(piece) == end:
                break
            offset, piece = next(pieces)
        yield together
