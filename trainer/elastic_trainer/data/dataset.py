"""ElasticDataset: a map-style dataset in, this rank's batches of the global order out."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from elastic_trainer.data.elastic_data import whole
from elastic_trainer.data.loader_process import LoaderProcess
from elastic_trainer.data.order import Batches, ElasticOrder
from elastic_trainer.data.prefetched import DrawnBatch, Prefetched
from elastic_trainer.data.seeded import CollateUnlessStale, SeededDataset
from elastic_trainer.ranks.process_group import ProcessGroup

if TYPE_CHECKING:
    from elastic_trainer.data.coordinate import Mesh


class ElasticDataset(ElasticOrder, IterableDataset[Any]):
    """All epochs of a map-style dataset in one iteration, shared among the ranks.

    Each step takes the next samples of a seeded order that doesn't depend on the world; each rank
    gets its contiguous part, collated. `Checkpointer.step()` (or `applied()`) after the optimizer's
    step moves the cursor over everything handed out so far; what was handed out but not applied is
    handed out again after a restart, however far worker processes prefetched.

    A step's size is `batch_size * world`, or `global_batch` where that is given: then an elastic
    run is the same run as an undisturbed one. A rank's part of it that is above `batch_size` comes
    in several batches of equal number of samples (but for one):

        data = ElasticDataset(images, batch_size=32, global_batch=256, epochs=3)
        for images, labels in data:
            with data.micro_batch(model):
                (data.weight * loss(model(images), labels)).backward()
            if data.last:
                optimizer.step()
                optimizer.zero_grad()
                checkpointer.step()

    The last step of an epoch may be smaller, and any step uneven: multiply the mean loss by
    `weight`, so that the gradients, added up over batches and averaged over ranks, are those of
    the mean over the whole step. All ranks get the same number of batches in a step: one left
    without a sample gets some sample again, with weight 0, so that it takes part in what forward
    and backward passes communicate; it isn't counted as consumed.

    Random numbers belong to the sample: `torch`, `numpy.random` and `random` are seeded for each by
    (seed, epoch, index), in loader processes as in this one, see SeededDataset. So an augmentation
    draws the same whatever the world and however often training was interrupted.

    Works alone or as `DataLoader(data, batch_size=None)`. Worker processes belong to the
    ElasticDataset (`num_workers` here), since a loader around it would take the cursor into them.

    Args:
        dataset: has `__len__` and `__getitem__`, and optionally `__getitems__`.
        batch_size: most samples of a batch on a rank; equal on all ranks.
        global_batch: samples of a full step on all ranks together, whatever the world.
        epochs: how often the whole dataset is passed.
        seed: of the order; a restart must use the same.
        audit: a folder, shared by the ranks, for what `elastic_trainer.data.audit` verifies.
        collate: list of samples -> batch.
        group: this process's rank and world; asked from torch.distributed when iteration begins.
        mesh: the data-parallel dimensions of a DeviceMesh, as `mesh["dp"]`, or a function that
            makes them for each round: ranks of one tensor-, context- or pipeline-parallel group
            take the same samples, which count once.
        loader: further options of torch's DataLoader, such as `num_workers=4`,
            `prefetch_factor=4`, `pin_memory=True`.

    Raises:
        ValueError: an empty dataset, a size below 1, or neither size.
        TypeError: a stream, a loader, or else no map-style dataset; a size that is no number; an
            option that would change the order.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        epochs: int,
        seed: int = 0,
        audit: str | Path | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        group: ProcessGroup | None = None,
        mesh: Mesh | None = None,
        **loader: Any,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(
            dataset, IterableDataset
        ):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}: expected a map-style one, with __len__ "
                "and __getitem__; a stream of shards is an ElasticStream's"
            )
        super().__init__(
            len(dataset),
            batch_size=batch_size,
            global_batch=global_batch,
            seed=seed,
            audit=audit,
            group=group,
            mesh=mesh,
        )
        if whole("epochs", epochs) < 1:
            raise ValueError(f"epochs is {epochs}: expected at least 1")
        if taken := _OURS.keys() & loader.keys():
            raise TypeError(
                f"ElasticDataset has no {', no '.join(sorted(taken))}: "
                + "; ".join(sorted({_OURS[name] for name in taken}))
            )
        self.dataset = dataset
        self.epochs = epochs
        self._ahead = self.cursor
        self._drawn = deque[DrawnBatch]()
        if loader.get("num_workers"):
            # A new round doesn't start them anew.
            loader = {"persistent_workers": True, **loader}
            loader["worker_init_fn"] = LoaderProcess(loader.get("worker_init_fn"))
        self._samples = SeededDataset(dataset, seed)
        self._prefetched: Prefetched | None = None
        self._loader = DataLoader(
            self._samples,
            batch_sampler=_AllEpochs(self),
            collate_fn=CollateUnlessStale(collate),
            # Its own: the number of iterations would show in torch's, hence in dropout.
            generator=torch.Generator().manual_seed(seed % 2**63),
            **loader,
        )

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError(
                "ElasticDataset keeps the cursor in the training process: give num_workers to it, "
                "and use it directly or with DataLoader(data, batch_size=None, num_workers=0)"
            )
        # DataLoader asks the dataset for an iterator here, and for nothing that would tell sooner.
        if getattr(sys._getframe(1).f_locals.get("self"), "auto_collation", False):
            raise ValueError(
                "a DataLoader would make batches of ElasticDataset's batches: iterate it directly, "
                "or give the DataLoader batch_size=None"
            )
        self._begin_alone()
        return self.follow(self._batches(), lambda: self.epochs)

    @property
    def total(self) -> int:
        return self.epochs * self.samples

    def _batches(self) -> Iterable[Any]:
        """Return the batches from the cursor on; those that were prefetched are kept if they are
        the same, else their loading is dropped."""
        mine, uneven = self.coordinate, self.division.reduced
        share = (mine.rank, mine.world, self.batch, self.batch_size or 0, *chain(*uneven))
        if self._prefetched is not None and (ahead := self._prefetched.restart(share)) is not None:
            for drawn in ahead:
                if drawn.taken is not None:
                    self._took(drawn.at, drawn.taken)  # by this run, too
            return self._prefetched
        self._prefetched = None  # before its processes are asked for another's
        self._samples.iteration += 1
        if not self._loader.num_workers:
            return self._loader
        self._drawn = deque[DrawnBatch]()
        data: ElasticDataset = weakref.proxy(self)
        self._prefetched = Prefetched(
            self._loader,
            self._drawn,
            share=share,
            cursor=lambda: data.cursor,
            room=self._loader.num_workers * (self._loader.prefetch_factor or 1),
        )
        return self._prefetched

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._ahead = self.cursor


_OURS = {
    **dict.fromkeys(
        ("batch_sampler", "sampler", "shuffle"),
        "the order and each rank's part of it are its own, shuffled by `seed`",
    ),
    "in_order": "batches come in the order of the steps that they are for",
    "drop_last": "every sample counts; an uneven end is weighed by `weight`",
    "collate_fn": "it is called collate",
    "generator": "the order is given by `seed`",
}
"""Arguments that a DataLoader takes and an ElasticDataset doesn't, and why."""


class _AllEpochs:
    """The loader's batch sampler; `epochs` may still be changed on the way.

    It doesn't keep the data, which has the loader: in a cycle with it, torch's iterator would be
    left to the garbage collector, which closes its queues first, and would then wait five seconds
    for each of its processes, in whatever the script does at that moment.
    """

    def __init__(self, data: ElasticDataset) -> None:
        self._data: ElasticDataset = weakref.proxy(data)

    def __iter__(self) -> Batches:
        data = self._data
        return Batches(
            data,
            lambda: data.epochs,
            iteration=int(data._samples.iteration[0]),
            drawn=data._drawn if data._loader.num_workers else None,
        )
