"""State from one rank to those that lack it, over the round's process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from elastic_trainer.ranks.process_group import control_group, gloo_timeout
from elastic_trainer.ranks.waiting import wait_in_round
from elastic_trainer.store.blob import Blob, lay_out, read

TOGETHER = 1 << 20
"""Bytes. Neighbouring tensors smaller than this travel in one message."""
LARGEST = 1 << 28
"""Bytes of one message."""

_TURN = torch.zeros(1, dtype=torch.uint8)
"""Tells a taker that its turn has come: until then others have theirs, for longer than a message of
the data group may take."""


def _never() -> bool:
    return False


def send(
    state: Any,
    ranks: Sequence[int],
    moved: Callable[[int], None] = lambda _: None,
    over: Callable[[], bool] = _never,
) -> None:
    """Sends `state` (nested dicts, lists and tensors) to each of `ranks`.

    Args:
        moved: called with the bytes of each message once it is sent.
        over: tells whether the round is over, so that nobody may take it.

    Raises:
        RuntimeError: a peer was lost, or the round is over.
    """
    blob = lay_out(state)
    device = _device()
    spans = list(_spans(blob))
    skeleton = torch.frombuffer(bytearray(blob.skeleton), dtype=torch.uint8)
    head = torch.tensor([len(skeleton), blob.size, len(spans)])
    bounds = torch.tensor([bound for start, content in spans for bound in (start, len(content))])
    for rank in ranks:
        if (control := _own_control_group()) is not None:
            _wait(dist.isend(_TURN, rank, group=control), _TURN, over, control)
        for tensor in (head, skeleton, bounds, *(content for _, content in spans)):
            if tensor.numel():
                message = tensor.to(device)
                _wait(dist.isend(message, rank), message, over)
                moved(tensor.numel() * tensor.element_size())


def receive(
    source: int,
    moved: Callable[[int], None] = lambda _: None,
    over: Callable[[], bool] = _never,
) -> Any:
    """Receive the state that rank `source` sends.

    Args:
        moved: called with the bytes of each message that came.
        over: tells whether the round is over, so that nothing may come any more.

    Raises:
        BlobError: that isn't a state.
        RuntimeError: a peer was lost, or the round is over.
    """
    device = _device()

    def take(target: torch.Tensor) -> torch.Tensor:
        if target.numel():
            arrived = target if target.device == device else target.to(device)
            _wait(dist.irecv(arrived, source), arrived, over)
            if arrived is not target:
                target.copy_(arrived)
            moved(target.numel() * target.element_size())
        return target

    if (control := _own_control_group()) is not None:
        turn = _TURN.clone()
        _wait(dist.irecv(turn, source, group=control), turn, over, control)
    length, size, count = take(torch.empty(3, dtype=torch.int64)).tolist()
    skeleton = take(torch.empty(length, dtype=torch.uint8)).numpy().tobytes()
    bounds = take(torch.empty(2 * count, dtype=torch.int64)).tolist()
    tensors = torch.empty(size, dtype=torch.uint8)
    for start, length in zip(bounds[::2], bounds[1::2], strict=True):
        take(tensors[start : start + length])
    return read(skeleton, tensors.numpy().data)


def _wait(
    work: dist.Work | None,
    message: torch.Tensor,
    over: Callable[[], bool],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Wait for a message to be sent, or to have come. Raises RuntimeError as `send`.

    Args:
        group: that it is sent in; None: the default one.
    """
    assert work is not None, "this rank is not in the group of the state's giver and takers"
    if message.device.type != "cpu":  # a stream waits, and it is this thread's
        work.wait()
        return
    patience = gloo_timeout(group or dist.group.WORLD)
    wait_in_round(lambda: work.wait(patience), over, "a message of the state")


def _spans(blob: Blob) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors' part as messages: a large tensor is sent from where it is, small ones are
    gathered."""
    gathered: list[tuple[int, torch.Tensor]] = []

    def flush() -> Iterator[tuple[int, torch.Tensor]]:
        if gathered:
            start, end = gathered[0][0], gathered[-1][0] + gathered[-1][1].numel()
            together = torch.empty(end - start, dtype=torch.uint8)
            for offset, piece in gathered:
                together[offset - start : offset - start + piece.numel()].copy_(piece)
            gathered.clear()
            yield start, together

    for offset, piece in blob.pieces():
        if piece.numel() < TOGETHER:
            gathered.append((offset, piece))
            continue
        yield from flush()
        for begin in range(0, piece.numel(), LARGEST):
            yield offset + begin, piece[begin : begin + LARGEST]
    yield from flush()


def _device() -> torch.device:
    """Return the device that the group's tensors have to be on: gloo takes the CPU's, NCCL only its
    own."""
    kinds = dist.group.WORLD._device_types if dist.group.WORLD is not None else []
    if not kinds or torch.device("cpu") in kinds:
        return torch.device("cpu")
    kind = kinds[0].type
    return torch.device(kind, torch.get_device_module(kind).current_device())


def _own_control_group() -> dist.ProcessGroup | None:
    """Return the control messages' group; None where the data group is as patient."""
    group: dist.ProcessGroup = control_group()
    return None if group is dist.group.WORLD else group
