"""The position of training in the global order, and each rank's share of a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from elastic_trainer.data.division import EVEN, Division


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of one step: positions start..stop-1 of the epoch's order."""

    start: int
    stop: int
    weight: float
    """Factor for this rank's mean loss, so that the gradient averaged over the ranks is the mean
    over the whole step's samples: own samples * world / step's samples. 1 in a full step, 0 for a
    rank that has none."""
    largest: int = 0
    """Samples that no share of the step has more of; the same on all ranks."""

    @property
    def samples(self) -> int:
        return self.stop - self.start

    def micro_batches(self, size: int | None) -> list[Share]:
        """Return the share in parts of `size` samples at most, which differ by at most one.

        All ranks have the same number of parts, that of the largest share, since each forward pass
        may communicate (FSDP2, SyncBatchNorm). So a part may be empty, with weight 0. The gradients
        of the parts, each with its own weight, add up to the share's.
        """
        largest = max(self.samples, self.largest)
        parts = 1 if size is None else max(1, -(-largest // size))
        bounds = [self.start + self.samples * part // parts for part in range(parts + 1)]
        return [
            Share(start, stop, self.weight * (stop - start) / max(1, self.samples))
            for start, stop in pairwise(bounds)
        ]


@dataclass(frozen=True, slots=True)
class Cursor:
    """`step` steps are done; the next sample is at `position` of `epoch`'s order.

    Nothing here depends on the world size of the past, so any world can go on from any cursor.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0

    def taken(self, *, samples: int, batch: int) -> int:
        """Return how many samples the next step takes: `batch`, or what the epoch still has.

        Raises:
            ValueError: a size below 1, or a position outside the epoch.
        """
        for name, value in (("samples", samples), ("batch", batch)):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        if not 0 <= self.position < samples:
            raise ValueError(f"position {self.position} in an epoch of {samples} samples")
        return min(batch, samples - self.position)

    def share(
        self, rank: int, *, samples: int, batch: int, world: int, division: Division = EVEN
    ) -> Share:
        """The contiguous part of the next step that `rank` takes; `batch` is all ranks' together.

        Shares differ by at most one sample unless `division` says otherwise, and a rank may get
        nothing: it still takes part in the step, so all ranks make the same number of steps.

        Raises:
            ValueError: as `taken`, and for a rank outside the world.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} in a world of {world}")
        taken = self.taken(samples=samples, batch=batch)
        start, stop = division.bounds(rank, taken, world)
        weight = (stop - start) * world / taken
        largest = division.largest(taken, world)
        return Share(self.position + start, self.position + stop, weight, largest)

    def advance(self, *, samples: int, batch: int) -> Cursor:
        """The cursor after the next step of the whole world."""
        position = self.position + self.taken(samples=samples, batch=batch)
        if position == samples:
            return Cursor(self.epoch + 1, 0, self.step + 1)
        return Cursor(self.epoch, position, self.step + 1)
