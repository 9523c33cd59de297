"""ElasticOrder: how far training has come in the global order, and what this rank takes of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

from elastic_trainer.data.audit import AuditLog, RunStart, last_run
from elastic_trainer.data.cursor import Cursor, Share
from elastic_trainer.data.prefetched import DrawnBatch
from elastic_trainer.data.seeded import IndexBatch
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.shards.permutation import Permutation

_END = object()


class ElasticOrder:
    """The common part of ElasticDataset and ElasticSampler; see there.

    `cursor` is what was applied, and what is saved. Batches are handed out ahead of it, and data
    loaders ask for indices ahead of those: neither moves it.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch_size: int | None,
        global_batch: int | None,
        seed: int,
        audit: str | Path | None,
        group: ProcessGroup | None,
    ) -> None:
        if batch_size is None and global_batch is None:
            raise ValueError("expected batch_size (of a rank), global_batch (of all ranks) or both")
        for name, value in (
            ("the dataset's length", samples),
            ("batch_size", batch_size),
            ("global_batch", global_batch),
        ):
            if value is not None and whole(name, value) < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        whole("seed", seed)
        self.samples = samples
        """Samples of one epoch."""
        self.batch_size = batch_size
        self.global_batch = global_batch
        self.seed = seed
        self.audit = None if audit is None else Path(audit).absolute()
        self.cursor = Cursor()
        """What has been applied."""
        self.weight = 1.0
        """Factor for the mean loss of the batch handed out last."""
        self.batch_samples = 0
        """This rank's samples in the batch handed out last."""
        self.last = True
        """Whether the batch handed out last is its step's last: the optimizer steps after it."""
        self._ahead: Cursor | None = None  # what has been handed out; None: nobody follows
        self._waited = 0.0
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
    def batch(self) -> int:
        """Samples of a full step over all ranks, at the present world."""
        if self.global_batch is not None:
            return self.global_batch
        assert self.batch_size is not None  # one of them is given
        return self.batch_size * self.group.world

    @property
    def steps(self) -> int:
        """Steps applied since the very beginning of training."""
        return self.cursor.step

    @property
    def consumed(self) -> int:
        """Samples applied so far, over all epochs and ranks."""
        return self.cursor.epoch * self.samples + self.cursor.position

    @property
    def total(self) -> int:
        """Samples that training consumes in all, over all epochs and ranks; 0: not known."""
        return 0

    @property
    def reached(self) -> int:
        """Samples applied once the step is that all batches were handed out of."""
        at = self._ahead or self.cursor
        return at.epoch * self.samples + at.position

    # ---- what to take

    def micro_batches(self, at: Cursor) -> list[Share]:
        """Return this rank's micro-batches of the step after `at`, in the order they are handed
        out."""
        group = self.group
        share = at.share(group.rank, samples=self.samples, batch=self.batch, world=group.world)
        return share.micro_batches(self.batch_size)

    def after(self, at: Cursor) -> Cursor:
        """The cursor one step of the whole world after `at`."""
        return at.advance(samples=self.samples, batch=self.batch)

    def follow(self, batches: Iterable[Any], end: Callable[[], int] | None = None) -> Iterator[Any]:
        """`batches` as they come, which must be those of this order from `cursor` on; `weight` and
        `last` are set for each. Those of epoch `end()` and later, drawn before it was lowered,
        aren't handed out.

        Raises:
            RuntimeError: they end before `end()`, or without one within an epoch.
        """
        source = iter(batches)
        at = self._ahead = self.cursor
        while end is None or at.epoch < end():
            begun, micro_batches = at, self.micro_batches(at)
            at = self.after(at)
            for number, share in enumerate(micro_batches, 1):
                asked = time.monotonic()
                batch = next(source, _END)
                self._waited += time.monotonic() - asked
                if batch is _END:
                    if end is None and number == 1 and not begun.position:
                        return
                    raise RuntimeError(
                        f"the batches ended at sample {begun.position} of {self.samples} of epoch "
                        f"{begun.epoch}: expected all of them. A StopIteration in the dataset's "
                        "__getitem__ or in collate ends them so: let it raise IndexError instead"
                    )
                self.weight, self.batch_samples = share.weight, share.samples
                self.last = number == len(micro_batches)
                if self.last:
                    self._ahead = at
                yield batch

    def waited(self) -> float:
        """Return the seconds that batches were waited for since this was last asked."""
        seconds, self._waited = self._waited, 0.0
        return seconds

    def micro_batch(self, model: Any) -> AbstractContextManager[Any]:
        """For the forward and backward pass of one batch: gradients are added up on each rank and
        averaged over the ranks with the step's last batch, so a step has one all-reduce.

        `model` may be a DistributedDataParallel or anything else with `no_sync()`; a plain module
        has nothing to synchronise.
        """
        if self.last or not hasattr(model, "no_sync"):
            return nullcontext()
        context: AbstractContextManager[Any] = model.no_sync()
        return context

    def applied(self) -> None:
        """The optimizer has applied every batch handed out so far; without `follow`, one step.

        Raises:
            RuntimeError: no whole step was handed out since the last call.
        """
        if self._ahead is None:
            self.cursor = self.after(self.cursor)
        elif self._ahead == self.cursor:
            raise RuntimeError(
                "no batch was taken since the last step, or not all of its micro-batches: call "
                "Checkpointer.step() once after each optimizer step, inside the loop over the data"
                + ("" if self.last else ", where its `last` is True")
            )
        else:
            self.cursor = self._ahead
        if self._log is not None:
            self._log.applied(self.cursor.step)

    # ---- the audit's record

    def _begin_alone(self) -> None:
        """A run's record where no Checkpointer has begun one."""
        if self.audit is not None and self._log is None:
            self.begin(run=self.group.from_rank(0, self.last_run() + 1))

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

    def _took(self, at: Cursor, indices: list[int]) -> None:
        """Writes down what this rank takes of the step after `at`, before its use."""
        if self._log is not None:
            self._log.took(step=at.step + 1, epoch=at.epoch, indices=indices)

    def close(self) -> None:
        """End the audit record; it needs no end, but the file is released."""
        if self._log is not None:
            self._log.close()
            self._log = None

    # ---- saving

    def state_dict(self) -> dict[str, int]:
        return {**asdict(self.cursor), **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved cursor, with any world and any `batch_size`.

        Raises:
            ValueError: it was saved for another order of samples, or another global batch.
        """
        for name, found in self._identity().items():
            if state[name] != found:
                raise ValueError(
                    f"the saved cursor is for {name}={state[name]}, this dataset has {name}={found}"
                    f": {_WHY[name]}; restore the former, or start in a new folder"
                )
        self.cursor = Cursor(state["epoch"], state["position"], state["step"])
        self._ahead = None

    def _identity(self) -> dict[str, int]:
        """Return the facts that a cursor means nothing without."""
        return {
            "samples": self.samples,
            "seed": self.seed,
            "global_batch": self.global_batch or 0,
        }


def whole(name: str, value: object) -> int:
    """Raises TypeError for what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: expected a whole number")
    return index(value)


_WHY = {
    "samples": "samples would be lost or repeated",
    "seed": "samples would be lost or repeated",
    "global_batch": "steps would be of another size (0: batch_size times the world)",
}


class Batches(Iterator[list[int]]):
    """This rank's batches of indices from `order.cursor` up to the start of epoch `end()`.

    A data loader takes them ahead of use. Each step's line in the audit is written here, which is
    before its use.

    It has the state that torchdata's StatefulDataLoader asks an iterator for: the cursor after the
    last whole step that was taken.

    Args:
        end: the epoch before which they end.
        iteration: goes with each batch; see SeededDataset.
        drawn: where to note each batch.
    """

    def __init__(
        self,
        order: ElasticOrder,
        end: Callable[[], int],
        *,
        iteration: int = 0,
        drawn: deque[DrawnBatch] | None = None,
    ) -> None:
        self._order = order
        self._end = end
        self._iteration = iteration
        self._drawn = drawn
        self._at = self._whole = order.cursor
        self._waiting: list[DrawnBatch] = []
        """Batches of the step that is being taken, last one first."""
        self._permutation: tuple[int, Permutation] | None = None

    def __next__(self) -> list[int]:
        if not self._waiting:
            if self._at.epoch >= self._end():
                raise StopIteration
            self._waiting = self._step()
        drawn = self._waiting.pop()
        if not self._waiting:
            self._whole = self._at
        if self._drawn is not None:
            self._drawn.append(drawn)
        return drawn.indices

    def _step(self) -> list[DrawnBatch]:
        order, at = self._order, self._at
        if self._permutation is None or self._permutation[0] != at.epoch:
            epoch = Permutation(order.samples, seed=order.seed, epoch=at.epoch)
            self._permutation = (at.epoch, epoch)
        permutation = self._permutation[1]
        shares = order.micro_batches(at)
        start = shares[0].start
        indices = permutation.slice(start, shares[-1].stop).tolist()
        self._at = order.after(at)
        order._took(at, indices)
        # A part without samples has weight 0: any sample will do to take part with.
        spare = indices[:1] or [permutation[at.position]]
        batches = [
            DrawnBatch(
                IndexBatch(
                    indices[share.start - start : share.stop - start] or spare,
                    epoch=at.epoch,
                    iteration=self._iteration,
                ),
                at,
                None if number else indices,
            )
            for number, share in enumerate(shares)
        ]
        return batches[::-1]

    def state_dict(self) -> dict[str, int]:
        return {**asdict(self._whole), **self._order._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._order.load_state_dict(state)
        self._at = self._whole = self._order.cursor
        self._waiting = []
