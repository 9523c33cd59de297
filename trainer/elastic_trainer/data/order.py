"""ElasticOrder: how far training has come in the global order, and what this rank takes of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_trainer.data.cursor import Cursor, Share
from elastic_trainer.data.division import EVEN, Division
from elastic_trainer.data.elastic_data import ElasticData, whole
from elastic_trainer.data.prefetched import DrawnBatch
from elastic_trainer.data.seeded import IndexBatch
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.shards.permutation import Permutation

if TYPE_CHECKING:
    from elastic_trainer.data.coordinate import Mesh

_END = object()


class ElasticOrder(ElasticData):
    """The common part of ElasticDataset and ElasticSampler; see there."""

    cursor: Cursor
    _ahead: Cursor | None

    def __init__(
        self,
        samples: int,
        *,
        batch_size: int | None,
        global_batch: int | None,
        seed: int,
        audit: str | Path | None,
        group: ProcessGroup | None,
        mesh: Mesh | None,
    ) -> None:
        super().__init__(seed=seed, audit=audit, group=group, mesh=mesh)
        if batch_size is None and global_batch is None:
            raise ValueError("expected batch_size (of a rank), global_batch (of all ranks) or both")
        for name, value in (
            ("the dataset's length", samples),
            ("batch_size", batch_size),
            ("global_batch", global_batch),
        ):
            if value is not None and whole(name, value) < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        self.samples = samples
        """Samples of one epoch."""
        self.batch_size = batch_size
        self.global_batch = global_batch
        self.cursor = Cursor()
        self.division = EVEN
        """How a step's samples are divided among the ranks."""

    def regroup(self, group: ProcessGroup) -> None:
        self.division = EVEN
        super().regroup(group)

    def divide(self, division: Division) -> None:
        # A mesh's coordinates are of several ranks, which go by their slowest one anyway.
        self.division = division if self.coordinate.world == self.group.world else EVEN

    @property
    def batch(self) -> int:
        """Samples of a full step over all ranks, at the present world."""
        if self.global_batch is not None:
            return self.global_batch
        assert self.batch_size is not None  # one of them is given
        return self.batch_size * self.coordinate.world

    @property
    def consumed(self) -> int:
        """Samples applied so far, over all epochs and ranks."""
        return self.cursor.epoch * self.samples + self.cursor.position

    @property
    def reached(self) -> int:
        """Samples applied once the step is that all batches were handed out of."""
        at = self._ahead or self.cursor
        return at.epoch * self.samples + at.position

    # ---- what to take

    def micro_batches(self, at: Cursor) -> list[Share]:
        """Return this rank's micro-batches of the step after `at`, in the order they are handed
        out."""
        mine = self.coordinate
        share = at.share(
            mine.rank,
            samples=self.samples,
            batch=self.batch,
            world=mine.world,
            division=self.division,
        )
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

    def _next_step(self) -> Cursor:
        return self.after(self.cursor)

    def _took(self, at: Cursor, indices: list[int]) -> None:
        """Writes down what this rank takes of the step after `at`, before its use."""
        if self._log is not None and self.coordinate.first:
            self._log.took(step=at.step + 1, epoch=at.epoch, indices=indices)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        return {**asdict(self.cursor), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
