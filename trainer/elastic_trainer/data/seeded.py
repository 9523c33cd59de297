"""SeededDataset: random numbers that belong to a sample, whichever process reads it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, default_collate, get_worker_info


class IndexBatch(list[int]):
    """The indices of a batch, with the epoch that they are read for."""

    def __init__(self, indices: Sequence[int], *, epoch: int = 0, iteration: int = 0) -> None:
        super().__init__(indices)
        self.epoch = epoch
        self.iteration = iteration
        """Which iteration of the data asked for it; see SeededDataset.iteration."""


class SeededDataset(Dataset[Any]):
    """A map-style dataset that seeds `torch`, `numpy.random` and `random` before each sample.

        loader = DataLoader(SeededDataset(data, seed=1), batch_sampler=ElasticSampler(data, ...))

    The seed is of (seed, epoch, index): an augmentation draws the same numbers whatever the world,
    the rank, the loader process and the restarts. The epoch comes with the batches of
    ElasticSampler; ElasticDataset uses all this by itself. In a training process that reads samples
    itself (`num_workers=0`) the generators are put back, so that dropout is as it would be.

    A dataset with `__getitems__` (except torch's Subset) reads a batch at once: it is seeded once a
    batch, by the first sample, so its random numbers depend on how a step is cut into batches.

    Args:
        dataset: has `__len__` and `__getitem__`.
        seed: of all random numbers.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self.dataset = dataset
        self.seed = seed
        self.iteration: torch.Tensor = torch.zeros(1, dtype=torch.int64)
        """The newest iteration, seen by all loader processes; batches of older ones are dropped."""
        self.iteration.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__(IndexBatch([index]))[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples; none where nobody waits for them any more."""
        batch = indices if isinstance(indices, IndexBatch) else IndexBatch(indices)
        if get_worker_info() is not None:
            stale = batch.iteration and batch.iteration != int(self.iteration[0])
            return [] if stale else self._read(batch)
        with kept_generators():
            return self._read(batch)

    def _read(self, batch: IndexBatch) -> list[Any]:
        return Samples(self._samples(batch), f"{self.seed}/{batch.epoch}/{batch[0]}/batch")

    def _samples(self, batch: IndexBatch) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        if together is not None and not isinstance(self.dataset, Subset):
            seed_generators(self.seed, batch.epoch, batch[0])
            return list(together(list(batch)))
        samples = []
        for index in batch:
            seed_generators(self.seed, batch.epoch, index)
            samples.append(self.dataset[index])
        return samples


class Samples(list[Any]):
    """The samples of a batch, with the seed of what is drawn for all of them together."""

    def __init__(self, samples: list[Any], seed: str) -> None:
        super().__init__(samples)
        self.seed = seed


class CollateUnlessStale:
    """Collates what SeededDataset read; None for a batch that it dropped.

    A collate function of the script's may draw numbers (mix-up): they are the batch's own, in a
    training process as in a loader process.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        if not samples:
            return None
        if self._collate is None or not isinstance(samples, Samples):
            return (self._collate or default_collate)(samples)
        with kept_generators() if get_worker_info() is None else nullcontext():
            seed_generators_by(samples.seed)
            return self._collate(list(samples))


def seed_generators(seed: int, epoch: int, index: int) -> None:
    """Seeds torch's CPU generator, NumPy's and Python's for one sample."""
    seed_generators_by(f"{seed}/{epoch}/{index}")


def seed_generators_by(seed: str) -> None:
    """Seeds torch's CPU generator, NumPy's and Python's."""
    digest = hashlib.blake2b(seed.encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    torch.default_generator.manual_seed(number)  # torch.manual_seed seeds every device too
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Puts the three generators back to where they were."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
