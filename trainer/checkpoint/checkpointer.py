"""Checkpointer: after each optimizer step, the one place where training may stop or be saved."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trainer.agent.link import Order, WorkerLink
from trainer.checkpoint.storage import Commit, Storage, StorageError
from trainer.data.dataset import ElasticDataset
from trainer.data.process_group import ProcessGroup

STATE = "state.pt"
SHORTEST = timedelta(seconds=1)
SHARE = 0.01
"""Of the time that commits may take where no interval is given."""

log = logging.getLogger(__name__)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Start:
    """What rank 0 decides for the whole run before its first step."""

    run: int
    commit: Commit | None
    refusal: str | None = None


class Checkpointer:
    """Saves model, optimizer and the data's cursor in one commit, and restores them together.

    Constructing it restores the newest commit, the same one on every rank; do it after
    `init_process_group` and after the optimizer exists. The optimizer comes back with the learning
    rate it was saved with: where that follows the world size, set it afterwards.

    Args:
        folder: shared by all pods of the job.
        model: replicated on every rank; may be wrapped in DistributedDataParallel.
        optimizer: of the model.
        data: the dataset being iterated.
        every: steps (int) or time between commits. None: as often as keeps their cost under 1 % of
            the time, at most once a second.
        extra: more to save and restore, such as a learning rate scheduler.
        keep: commits to keep.
        link: to this pod's agent; found in the environment.
        clock: monotonic seconds.
        restore: False leaves it to the caller, who does it before the first step.

    Raises:
        StorageError: the folder can't be written (by rank 0), or a rank can't read the commit.
        ValueError: the commit was made with other data, see ElasticDataset.load_state_dict.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: ElasticDataset,
        every: int | timedelta | None = None,
        extra: Mapping[str, Stateful] | None = None,
        keep: int = 3,
        link: WorkerLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        restore: bool = True,
    ) -> None:
        least = every if every is None or isinstance(every, int) else every.total_seconds()
        if least is not None and least <= 0:
            raise ValueError(f"every is {every}: expected a positive number of steps, or a time")
        self.storage = Storage(folder, keep=keep)
        self.model = model
        self.optimizer = optimizer
        self.data = data
        self.every = every
        self.extra = dict(extra or {})
        self.link = link or WorkerLink.from_environment()
        self.run = 0
        """Number of this life of the worker processes, or of this round of an ElasticLoop; see
        trainer.data.audit."""
        self.parent = 0
        """The run whose state this one began with; 0 for none."""
        self.committed: int | None = None
        """Step of the newest commit, on rank 0."""
        self.commit_time = timedelta(0)
        """How long the last commit took, on rank 0, which trains on only afterwards."""
        self._clock = clock
        self._committed_at = clock()
        if restore:
            self.restore()

    @property
    def _group(self) -> ProcessGroup:
        return self.data.group

    def restore(self) -> None:
        """Load the newest commit, if there is any, and begin a new run from it, on all ranks."""
        start = self._group.from_rank(0, self._decide() if self._group.rank == 0 else None)
        assert start is not None  # rank 0 always says something
        if start.refusal is not None:
            self.link.give_up(start.refusal)
            raise StorageError(start.refusal)
        if start.commit is not None:
            self._load(start.commit)
        self.begin(run=start.run, parent=start.commit.run if start.commit else 0)

    def begin(self, *, run: int, parent: int) -> None:
        """A run begins on this rank, with the state that run `parent` left."""
        self.run, self.parent = run, parent
        self.data.begin(run=run, parent=parent, round_=self.link.round)
        self._committed_at = self._clock()

    def step(self) -> None:
        """Call once after each `optimizer.step()`.

        Does not return when the world is about to change: the state is committed, and this process
        ends; its successor goes on from there.
        """
        self.data.applied()
        order = self.link.boundary(self.data.steps, self.data.consumed)
        if order is not Order.GO:
            self.commit_on_all_ranks()
            self.data.close()
            self.link.fenced(self.data.steps, order)
        else:
            self.commit_if_due()

    def commit_if_due(self) -> None:
        """After a step was applied; only rank 0 does anything."""
        if self._group.rank == 0 and self._due():
            try:
                self._commit()
            except StorageError as error:
                # The last commit still stands, and the next may succeed. At a fence it is fatal.
                log.warning("going on without this commit: %s", error)
                self._committed_at = self._clock()

    def finish(self) -> None:
        """Training is complete: the last commit, and the word to the agent."""
        self.commit_on_all_ranks()
        self.data.close()
        self.link.finished()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()

    def _decide(self) -> _Start:
        try:
            self.storage.prepare()
            commit = self.storage.newest()
        except StorageError as error:
            return _Start(0, None, str(error))
        return _Start(1 + max(commit.run if commit else 0, self.data.last_run()), commit)

    def _load(self, commit: Commit) -> None:
        try:
            content = self.storage.read(commit, STATE)
        except StorageError as error:
            raise StorageError(
                f"rank 0 restores step {commit.step} from {self.storage.folder}, but rank "
                f"{self._group.rank} can't: {error}; the folder must be shared by all pods"
            ) from error
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        self.load_state({**state, "cursor": commit.cursor})
        if self._group.rank == 0:
            # The others keep the generators their script seeded: alike ones would drop out alike.
            torch.set_rng_state(state["rng"])
            self.committed = commit.step
            self.link.committed(commit.step, commit.round)

    def state(self) -> dict[str, Any]:
        """All that a rank needs to go on from here, of which a commit is made."""
        return {
            "model": _unwrapped(self.model).state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "extra": {name: part.state_dict() for name, part in self.extra.items()},
            "cursor": self.data.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the state was made with other data."""
        _unwrapped(self.model).load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, part in self.extra.items():
            part.load_state_dict(state["extra"][name])
        self.data.load_state_dict(state["cursor"])

    def _due(self) -> bool:
        if isinstance(self.every, int):
            return self.data.steps - (self.committed or 0) >= self.every
        interval = self.every or max(SHORTEST, self.commit_time / SHARE)
        return self._clock() - self._committed_at >= interval.total_seconds()

    def commit_on_all_ranks(self) -> None:
        """Returns on every rank once rank 0's commit is durable, so nobody leaves before."""
        if self._group.rank == 0 and self.committed != self.data.steps:
            self._commit()
        self._group.barrier()

    def _commit(self) -> None:
        began = self._clock()
        state = {**self.state(), "rng": torch.get_rng_state()}
        self.storage.write(
            step=self.data.steps,
            run=self.run,
            cursor=state.pop("cursor"),
            round_=self.link.round,
            files={STATE: lambda file: torch.save(state, cast(Any, file))},
        )
        self.committed = self.data.steps
        self._committed_at = self._clock()
        self.commit_time = timedelta(seconds=self._committed_at - began)
        self.link.stalled(self._committed_at - began)
        self.link.committed(self.data.steps)


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module, so that a commit loads into any wrapping."""
    while isinstance(model, DistributedDataParallel | DataParallel):
        model = model.module
    return model
