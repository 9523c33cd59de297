"""Cuts all epochs of a data set into leases. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from elastic_trainer.shards.ranges import Ranges

if TYPE_CHECKING:
    from elastic_trainer.shards.permutation import Indices, Permutation


@dataclass(frozen=True, slots=True)
class Shards:
    """Position p of the stream is position p % samples of epoch p // samples.

    Cuts are on a grid, so that leases that go back and are given again are the same leases.

    Raises:
        ValueError: a size below 1.
    """

    samples: int
    """Samples of one epoch."""
    epochs: int
    size: int
    """Most samples of a lease; the last one of an epoch may be smaller."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "epochs", "size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 1")

    @property
    def all(self) -> Ranges:
        return Ranges.of(0, self.samples * self.epochs)

    def cut(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        """Leases that `ranges` are made of, lowest first."""
        for start, stop in ranges:
            while start < stop:
                position = start % self.samples
                end = min(self.samples, (position // self.size + 1) * self.size)
                yield start, (start := min(stop, start - position + end))

    def difference(self, other: Shards) -> str | None:
        """Return what makes a position of `other` another sample; None if nothing does."""
        for name in ("samples", "seed"):
            if getattr(self, name) != getattr(other, name):
                return f"expected {name}={getattr(self, name)}, found {getattr(other, name)}"
        return None

    def epoch(self, start: int) -> int:
        return start // self.samples

    def indices(self, start: int, stop: int) -> Indices:
        """The samples at these positions, which are of one epoch."""
        epoch = self.epoch(start)
        permutation = _permutation(self.samples, self.seed, epoch)
        return permutation.slice(start - epoch * self.samples, stop - epoch * self.samples)


@lru_cache(maxsize=16)
def _permutation(samples: int, seed: int, epoch: int) -> Permutation:
    from elastic_trainer.shards.permutation import (
        Permutation,  # late: the coordinator needs no numpy
    )

    return Permutation(samples, seed=seed, epoch=epoch)
