"""Messages of a state between ranks, over the round's process group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from elastic_trainer.ranks.process_group import control_group, gloo_timeout
from elastic_trainer.ranks.stream import in_callers_stream
from elastic_trainer.ranks.waiting import wait_in_round

T = TypeVar("T")

AHEAD = 64
"""Messages that are under way at once, each way: gloo asks for each before it sends it."""

_TURN = torch.zeros(1, dtype=torch.uint8)
"""Tells a taker that the giver has begun: until then it gathers its state, for longer than a
message of the data group may take."""


class Messages:
    """Messages of this rank in the round's process group.

    Args:
        moved: called with the bytes of each.
    """

    def __init__(self, moved: Callable[[int], None]) -> None:
        self.device = _device()
        self._moved = moved
        self._patience = gloo_timeout(dist.group.WORLD)
        self._control = _own_control_group()
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()
        """Under way, with their memory."""
        self._coming: deque[tuple[torch.Tensor, dist.Work, torch.Tensor]] = deque()
        """Targets of `expect`."""

    def run(self, exchange: Callable[[], T], over: Callable[[], bool]) -> T:
        """Return what `exchange` returns, until the round is over. Raises RuntimeError then, or
        where a peer is lost.

        A device's messages are waited for by a stream, which is this thread's; gloo's block.
        """
        if self.device.type != "cpu":
            return exchange()
        return wait_in_round(in_callers_stream(exchange), over, "the hand-over of the state")

    def tell_turn(self, rank: int) -> None:
        if (control := self._control) is not None:
            self._wait(dist.isend(_TURN, rank, group=control), control)

    def take_turn(self, rank: int) -> None:
        if (control := self._control) is not None:
            self._wait(dist.irecv(_TURN.clone(), rank, group=control), control)

    def send(self, content: torch.Tensor, rank: int) -> None:
        """Begin to send, once fewer than AHEAD messages are under way."""
        if content.numel():
            message = content.contiguous().to(self.device)
            while len(self._sent) >= AHEAD:
                self._sent_one()
            self._sent.append((_work(dist.isend(message, rank)), message))

    def flush(self) -> None:
        """Wait until all has been sent, and has come."""
        while self._sent:
            self._sent_one()
        while self._coming:
            self._arrived(*self._coming.popleft())

    def take(self, target: torch.Tensor, rank: int) -> torch.Tensor:
        if target.numel():
            self._arrived(target, *self._begin_to_take(target, rank))
        return target

    def expect(self, target: torch.Tensor, rank: int) -> None:
        """Begin to take, once fewer than AHEAD messages are to come; `flush` waits for them.

        Args:
            target: of any strides, on any device.
        """
        if target.numel():
            while len(self._coming) >= AHEAD:
                self._arrived(*self._coming.popleft())
            message = torch.empty(target.shape, dtype=target.dtype, device=self.device)
            self._coming.append((target, _work(dist.irecv(message, rank)), message))

    def take_all(self, targets: Iterable[torch.Tensor], rank: int) -> Iterator[torch.Tensor]:
        """Yield each message, on the group's device, once it is in its target."""
        coming: deque[tuple[torch.Tensor, dist.Work, torch.Tensor]] = deque()
        for target in targets:
            coming.append((target, *self._begin_to_take(target, rank)))
            if len(coming) == AHEAD:
                yield self._arrived(*coming.popleft())
        while coming:
            yield self._arrived(*coming.popleft())

    def _begin_to_take(self, target: torch.Tensor, rank: int) -> tuple[dist.Work, torch.Tensor]:
        message = target.to(self.device)
        return _work(dist.irecv(message, rank)), message

    def _arrived(
        self, target: torch.Tensor, work: dist.Work, message: torch.Tensor
    ) -> torch.Tensor:
        self._wait(work)
        if message is not target:
            target.copy_(message)
        self._count(message)
        return message

    def _sent_one(self) -> None:
        work, message = self._sent.popleft()
        self._wait(work)
        self._count(message)

    def _wait(self, work: dist.Work | None, group: dist.ProcessGroup | None = None) -> None:
        if self.device.type != "cpu" and group is None:
            _work(work).wait()
        else:
            _work(work).wait(self._patience if group is None else gloo_timeout(group))

    def _count(self, message: torch.Tensor) -> None:
        self._moved(message.numel() * message.element_size())


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


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the group of the state's giver and takers"
    return work
