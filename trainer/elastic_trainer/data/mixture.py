"""Mixture: several map-style data sets as one, in given shares."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch.utils.data import Dataset

from elastic_trainer.shards.permutation import Permutation


class Mixture(Dataset[Any]):
    """`samples` draws, of which each data set has its share, for ElasticDataset or ElasticSampler.

        mixture = Mixture([web, code], weights=[3, 1], samples=1_000_000)
        data = ElasticDataset(mixture, batch_size=32, epochs=1)

    Their order mixes the draws, so that any stretch of training has about these shares. Of its
    draws a data set gives each sample equally often (but for one), chosen by the seed: it depends
    on nothing else, so "each index exactly once" holds for the mixture as for any data set.

    To pass data sets wholly, one epoch after another, without shares: torch's ConcatDataset.

    Args:
        datasets: each has `__len__` and `__getitem__`.
        weights: one for each, above 0; they needn't add up to 1.
        samples: of an epoch. One long epoch uses the data most evenly.
        seed: of the choice where a data set's draws aren't a multiple of its length.

    Raises:
        ValueError: numbers of the two that differ, an empty data set, a weight that isn't positive,
            or a share too small to have a sample.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset[Any]],
        weights: Sequence[float],
        *,
        samples: int,
        seed: int = 0,
    ) -> None:
        if len(datasets) != len(weights) or not datasets:
            raise ValueError(f"{len(datasets)} datasets and {len(weights)} weights: expected equal")
        if not all(weight > 0 for weight in weights):
            raise ValueError(f"weights are {list(weights)}: expected numbers above 0")
        self.datasets = list(datasets)
        self._lengths = [len(dataset) for dataset in datasets]  # type: ignore[arg-type]
        if 0 in self._lengths:
            raise ValueError(f"data set {self._lengths.index(0)} is empty")
        self._seed = seed
        # Rounded so that they add up: each boundary is the nearest whole number.
        bounds = [round(samples * part / sum(weights)) for part in accumulate(weights)]
        self._starts = [0, *bounds]
        self.draws = [stop - start for start, stop in zip(self._starts, bounds, strict=False)]
        """Draws from each data set in an epoch."""
        if min(self.draws) < 1:
            raise ValueError(
                f"{samples} samples in the shares {list(weights)} are {self.draws} of each data "
                "set: expected at least 1; take more samples"
            )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        number, sample = self.source(index)
        return self.datasets[number][sample]

    def source(self, index: int) -> tuple[int, int]:
        """Return a sample's data set and its index there. Raises IndexError outside."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a mixture of {len(self)}")
        number = bisect_right(self._starts, index) - 1
        turn, position = divmod(index - self._starts[number], self._lengths[number])
        if turn < self.draws[number] // self._lengths[number]:
            return number, position  # a whole pass: every sample comes
        permutation = Permutation(self._lengths[number], seed=self._seed, epoch=number)
        return number, permutation[position]
