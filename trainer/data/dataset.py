"""ElasticDataset: a map-style dataset in, this rank's batches of the global order out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from trainer.data.audit import AuditLog, RunStart, last_run
from trainer.data.cursor import Cursor
from trainer.data.permutation import Permutation
from trainer.data.process_group import ProcessGroup


class ElasticDataset(IterableDataset[Any]):
    """All epochs of a map-style dataset in one iteration, shared among the ranks.

    Each step takes the next batch_size * world samples of a seeded order that doesn't depend on the
    world; each rank gets its contiguous part, collated. `Checkpointer.step()` (or `applied()`)
    after the optimizer's step moves the cursor over everything handed out so far; what was handed
    out but not applied is handed out again after a restart.

    The last step of an epoch may be smaller, and uneven: multiply the loss by `weight`. A rank left
    without a sample gets one that belongs to another rank, with weight 0, so that it takes part in
    the all-reduce; it isn't counted as consumed.

    Works alone or as `DataLoader(data, batch_size=None)`; with `num_workers` above 0 the cursor
    would live in another process, which is refused.

    Args:
        dataset: has `__len__` and `__getitem__`, and optionally `__getitems__`.
        batch_size: samples of a full step on each rank; equal on all ranks.
        epochs: how often the whole dataset is passed.
        seed: of the order; a restart must use the same.
        audit: a folder, shared by the ranks, for the record that `trainer.data.audit` verifies.
        collate: list of samples -> batch.
        group: this process's rank and world; asked from torch.distributed when iteration begins.

    Raises:
        ValueError: an empty dataset, or a size below 1.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        epochs: int,
        seed: int = 0,
        audit: str | Path | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.samples = len(dataset)  # type: ignore[arg-type]  # map-style datasets are sized
        for name, value in (
            ("the dataset's length", self.samples),
            ("batch_size", batch_size),
            ("epochs", epochs),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        self.dataset = dataset
        self.batch_size = batch_size
        self.epochs = epochs
        self.seed = seed
        self.cursor = Cursor()
        """What has been applied."""
        self.weight = 1.0
        """Factor for the loss of the batch handed out last."""
        self.audit = None if audit is None else Path(audit)
        self._ahead = self.cursor  # what has been handed out
        self._collate: Callable[[list[Any]], Any] = collate or default_collate
        self._group = group
        self._log: AuditLog | None = None

    @property
    def group(self) -> ProcessGroup:
        if self._group is None:
            self._group = ProcessGroup.current()
        return self._group

    def regroup(self, group: ProcessGroup) -> None:
        """The world has changed; before the next iteration."""
        self._group = group

    @property
    def steps(self) -> int:
        """Steps applied since the very beginning of training."""
        return self.cursor.step

    @property
    def consumed(self) -> int:
        """Samples applied so far, over all epochs and ranks."""
        return self.cursor.epoch * self.samples + self.cursor.position

    def __iter__(self) -> Iterator[Any]:
        self._refuse_worker_processes()
        if self.audit is not None and self._log is None:
            self.begin(run=self.group.from_rank(0, self.last_run() + 1))
        self._ahead = self.cursor
        order: tuple[int, Permutation] | None = None
        while self._ahead.epoch < self.epochs:
            epoch = self._ahead.epoch
            if order is None or order[0] != epoch:
                order = (epoch, Permutation(self.samples, seed=self.seed, epoch=epoch))
            yield self._next(order[1])

    def _next(self, order: Permutation) -> Any:
        at, group = self._ahead, self.group
        split = {"samples": self.samples, "local_batch": self.batch_size, "world": group.world}
        share = at.share(group.rank, **split)
        indices = order.slice(share.start, share.stop).tolist()
        self._ahead = at.advance(**split)
        if self._log is not None:
            self._log.took(step=self._ahead.step, epoch=at.epoch, indices=indices)
        self.weight = share.weight
        return self._collate(self._fetch(indices or [order[at.position]]))

    def applied(self) -> None:
        """The optimizer has applied every batch handed out so far.

        Raises:
            RuntimeError: there was none since the last call.
        """
        if self._ahead == self.cursor:
            raise RuntimeError(
                "no batch was taken since the last step: call Checkpointer.step() once after each "
                "optimizer step, inside the loop over the ElasticDataset"
            )
        self.cursor = self._ahead
        if self._log is not None:
            self._log.applied(self.cursor.step)

    def last_run(self) -> int:
        """The highest run number in the audit folder; 0 without one."""
        return 0 if self.audit is None else last_run(self.audit)

    def begin(self, *, run: int, parent: int = 0, round_: int = 0) -> None:
        """Start this run's audit record, where one is wanted; the Checkpointer does it.

        Args:
            run: higher than every run before, the same on all ranks.
            parent: the run whose commit the cursor was loaded from; 0 for none.
            round_: the rendezvous round, for people who read the record.
        """
        if self.audit is None:
            return
        if self._log is not None:
            self._log.close()
        start = RunStart(
            run=run,
            round=round_,
            rank=self.group.rank,
            world=self.group.world,
            start_step=self.cursor.step,
            parent=parent,
        )
        self._log = AuditLog(self.audit, start)

    def close(self) -> None:
        """End the audit record; it needs no end, but the file is released."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def state_dict(self) -> dict[str, int]:
        return {**asdict(self.cursor), "samples": self.samples, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved cursor, with any world and any batch size.

        Raises:
            ValueError: it was saved for another order of samples.
        """
        for name, found in (("samples", self.samples), ("seed", self.seed)):
            if state[name] != found:
                raise ValueError(
                    f"the saved cursor is for {name}={state[name]}, this dataset has {name}={found}"
                    ": samples would be lost or repeated; restore the former, or start in a new "
                    "folder"
                )
        self.cursor = Cursor(state["epoch"], state["position"], state["step"])
        self._ahead = self.cursor

    def _fetch(self, indices: Sequence[int]) -> list[Any]:
        many = getattr(self.dataset, "__getitems__", None)
        if many is not None:
            return list(many(list(indices)))
        return [self.dataset[index] for index in indices]

    def _refuse_worker_processes(self) -> None:
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            raise RuntimeError(
                "ElasticDataset keeps the cursor in the training process: use it directly, or with "
                "DataLoader(data, batch_size=None, num_workers=0)"
            )
