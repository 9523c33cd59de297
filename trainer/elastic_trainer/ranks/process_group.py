"""This process's place among the processes that train together."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from elastic_trainer.ranks.gathering import gather_objects
from elastic_trainer.ranks.waiting import wait_in_round

T = TypeVar("T")

CONTROL_TIMEOUT = timedelta(hours=12)
"""How long ranks wait for one that restores or stores: its storage has deadlines of its own, and
the connection of one that is lost breaks."""
LEAST_TIMEOUT = timedelta(minutes=30)
"""gloo's own default. A group that has it takes control messages, too."""

_control: MutableMapping[Any, Any] = WeakKeyDictionary()
"""By default group, the one for control messages; None where the default group will do."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Rank and world size of this process, and what its ranks tell one another; given to
    ElasticDataset(group=…) where torch.distributed isn't asked.

    What ranks tell one another raises RuntimeError where one is lost, or the round is over.
    """

    rank: int = 0
    world: int = 1
    over: Callable[[], bool] | None = field(default=None, repr=False, compare=False)
    """Tells whether the round is over; None: the process ends with its round."""

    @classmethod
    def current(cls) -> ProcessGroup:
        """torch's default process group, or a world of one where there is none.

        Raises:
            RuntimeError: torchrun started several processes and they are not connected yet.
        """
        import torch.distributed as dist  # late: a simulation of ranks needs no torch

        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but there is no process group: call "
                "torch.distributed.init_process_group() before this"
            )
        return cls()

    def from_rank(self, source: int, value: T) -> T:
        """Rank `source`'s value, on every rank; returns once it has said it."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        said: list[Any] = [value]
        group = control_group()
        self._wait(lambda: dist.broadcast_object_list(said, src=source, group=group))
        agreed: T = said[0]
        return agreed

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""
        if self.world == 1:
            return [value]
        said: list[T] = []
        group = control_group()
        self._wait(lambda: said.extend(gather_objects(value, group)))
        return said

    def barrier(self) -> None:
        """Returns once every rank is here.

        Safe as a process's last collective, which a broadcast is not: gloo's thread lets go of a
        broadcast's Python tensors some time after it is over; where that meets the interpreter's
        end, the thread can't have the GIL any more, and the process aborts (SIGABRT, "terminate
        called without an active exception"). A barrier has no tensors.
        """
        if self.world > 1:
            import torch

            # torch's own would be NCCL's where a GPU is the group's, which no lost peer ends.
            gloo = control_group()._get_backend(torch.device("cpu"))
            self._wait(lambda: gloo.barrier().wait())

    def _wait(self, collective: Callable[[], object]) -> None:
        if self.over is None:
            collective()
        else:
            wait_in_round(collective, self.over, "what its ranks tell one another")


def control_group() -> Any:
    """Return the group for control messages, made by all ranks' first one.

    A restore may take longer than the data group's collectives may: NCCL's watchdog ends the
    process after 10 minutes. So it is gloo's, with a time-out of its own; the default group where
    that is gloo's and patient enough, as a second full mesh costs some 20 ms at 4 ranks.
    """
    import torch.distributed as dist

    default = dist.group.WORLD
    if default not in _control:
        patient = gloo_timeout(default) >= LEAST_TIMEOUT
        made = None if patient else dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        _control[default] = made  # not the key itself, which it would keep alive
    return _control[default] or default


def gloo_timeout(group: Any) -> timedelta:
    """Return how patient a group's gloo is on the CPU; nothing where it has none.

    Messages between two ranks have to be given it: left alone they have the time-out that the
    group was made with, which for an ElasticLoop's is that of its connecting.
    """
    import torch

    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # no back end for the CPU: NCCL's alone
        return timedelta()
    if backend.name() != "gloo":
        return timedelta()
    timeout: timedelta = backend.options._timeout
    return timeout
