"""ElasticData: what Checkpointer and ElasticLoop know of the data that a training consumes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from elastic_trainer.data.audit import AuditLog, RunStart, last_run
from elastic_trainer.data.coordinate import Coordinate, coordinate
from elastic_trainer.data.division import Division
from elastic_trainer.ranks.process_group import ProcessGroup

if TYPE_CHECKING:
    from elastic_trainer.data.coordinate import Mesh


class Position(Protocol):
    """A place in the data; what else it holds is its data's own."""

    @property
    def epoch(self) -> int: ...

    @property
    def step(self) -> int: ...


class ElasticData(ABC):
    """The common part of what hands batches out: see ElasticDataset, ElasticSampler, ElasticStream.

    `cursor` is what was applied, and what is saved, the same on every rank. Batches are handed out
    ahead of it, and data loaders read ahead of those: neither moves it.
    """

    cursor: Position
    """The position up to which samples have been applied."""
    agrees = False
    """True if ranks agree on each step's batches, so that taking one fails where a peer is lost."""

    def __init__(
        self,
        *,
        seed: int,
        audit: str | Path | None,
        group: ProcessGroup | None,
        mesh: Mesh | None,
    ) -> None:
        whole("seed", seed)
        self.seed = seed
        self.audit = None if audit is None else Path(audit).absolute()
        self.weight = 1.0
        """Factor for the mean loss of the batch handed out last."""
        self.batch_samples = 0
        """This rank's samples in the batch handed out last."""
        self.last = True
        """True if the batch handed out last is its step's last: the optimizer steps after it."""
        self._ahead: Position | None = None  # what has been handed out; None: nobody follows
        self._waited = 0.0
        self._group = group
        self._mesh = mesh
        self._coordinate: Coordinate | None = None
        self._log: AuditLog | None = None

    @property
    def group(self) -> ProcessGroup:
        if self._group is None:
            self._group = ProcessGroup.current()
        return self._group

    def regroup(self, group: ProcessGroup) -> None:
        """The world has changed; before the next iteration."""
        self._group = group
        self._coordinate = None
        if self._mesh is not None:
            assert self.coordinate  # a mesh is made by all ranks, at this moment

    def divide(self, division: Division) -> None:  # noqa: B027
        """Divide steps among the ranks so from the next iteration on, the same on all of them;
        after `regroup`, which makes it even. Data that agrees on each step's batches goes on as it
        does."""

    @property
    def coordinate(self) -> Coordinate:
        """The coordinate whose samples this process takes: its own, unless a mesh is given."""
        if self._coordinate is None:
            self._coordinate = coordinate(self.group, self._mesh)
        return self._coordinate

    @property
    def steps(self) -> int:
        """Steps applied since the very beginning of training."""
        return self.cursor.step

    @property
    @abstractmethod
    def batch(self) -> int:
        """The size of a full step over all ranks, at the present world."""

    @property
    @abstractmethod
    def consumed(self) -> int:
        """Samples applied so far, over all epochs and ranks."""

    @property
    def total(self) -> int:
        """Samples that training consumes in all, over all epochs and ranks; 0: not known."""
        return 0

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved cursor, with any world.

        Raises:
            ValueError: it was saved for other data.
        """

    # ---- batches

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
            self.cursor = self._next_step()
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

    def _next_step(self) -> Position:
        """Return the cursor a step after the present one, where nobody follows."""
        raise RuntimeError("no batch was handed out: iterate over the data")

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

    def close(self) -> None:
        """End the audit record; it needs no end, but the file is released."""
        if self._log is not None:
            self._log.close()
            self._log = None


def whole(name: str, value: object) -> int:
    """Raises TypeError for what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}: expected a whole number")
    return index(value)
