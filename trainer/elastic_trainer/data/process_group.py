"""This process's place among the processes that train together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Rank and world size of this process, and what its ranks tell one another; given to
    ElasticDataset(group=…) where torch.distributed isn't asked."""

    rank: int = 0
    world: int = 1

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
        dist.broadcast_object_list(said, src=source)
        agreed: T = said[0]
        return agreed

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        said: list[Any] = [None] * self.world
        dist.all_gather_object(said, value)
        return said

    def barrier(self) -> None:
        """Returns once every rank is here.

        Safe as a process's last collective, which a broadcast is not: gloo's thread lets go of a
        broadcast's Python tensors some time after it is over; where that meets the interpreter's
        end, the thread can't have the GIL any more, and the process aborts (SIGABRT, "terminate
        called without an active exception"). A barrier has no tensors.
        """
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()
