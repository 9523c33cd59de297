"""Where training stands in the global order, and who takes what next. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank takes of one step: positions start..stop-1 of the epoch's order."""

    start: int
    stop: int
    weight: float
    """Factor for this rank's mean loss, so that the gradient averaged over the ranks is the mean
    over the whole step's samples: own samples * world / step's samples. 1 in a full step, 0 for a
    rank that has none."""

    @property
    def samples(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Cursor:
    """`step` steps are done; the next sample is at `position` of `epoch`'s order.

    Nothing here depends on the world size of the past, so any world can go on from any cursor.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0

    def taken(self, samples: int, local_batch: int, world: int) -> int:
        """How many samples the next step takes: the global batch, or what the epoch still has.

        Raises:
            ValueError: a size below 1, or a position outside the epoch.
        """
        for name, value in (("samples", samples), ("local batch", local_batch), ("world", world)):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        if not 0 <= self.position < samples:
            raise ValueError(f"position {self.position} in an epoch of {samples} samples")
        return min(local_batch * world, samples - self.position)

    def share(self, rank: int, *, samples: int, local_batch: int, world: int) -> Share:
        """The contiguous part of the next step that `rank` takes.

        In the last step of an epoch shares differ by at most one, and a rank may get nothing: it
        still takes part in the step, so all ranks make the same number of steps.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} in a world of {world}")
        taken = self.taken(samples, local_batch, world)
        each, extra = divmod(taken, world)
        start = self.position + rank * each + min(rank, extra)
        own = each + (rank < extra)
        return Share(start, start + own, own * world / taken)

    def advance(self, *, samples: int, local_batch: int, world: int) -> Cursor:
        """The cursor after the next step of the whole world."""
        position = self.position + self.taken(samples, local_batch, world)
        if position == samples:
            return Cursor(self.epoch + 1, 0, self.step + 1)
        return Cursor(self.epoch, position, self.step + 1)
