"""Checkpointer: after each optimizer step, the one place where training may stop or be saved."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.model_state import MismatchError, ModelState, Stateful
from elastic_trainer.checkpoint.recovery import (
    NOTHING,
    Holding,
    Identity,
    Level,
    Source,
    level,
    next_run,
)
from elastic_trainer.checkpoint.sharded import Shards
from elastic_trainer.checkpoint.transfer import receive, send
from elastic_trainer.data.order import ElasticOrder
from elastic_trainer.data.process_group import ProcessGroup
from elastic_trainer.link.worker_link import Order, WorkerLink
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.replica import read_replica, write_replica
from elastic_trainer.store.slot import Label, Slot, SlotError
from elastic_trainer.store.storage import Storage, StorageError

SHORTEST = timedelta(seconds=1)
SHARE = 0.01
"""Of the time that saving may take where no interval is given."""
FOLDER_SECONDS = 30.0
"""After its start a node checks that it shares rank 0's folder: so long may a network file system
hide what another node wrote."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of a rank's loading."""

    holding: Holding
    """What it has now."""
    damaged: bool = False
    """Its source was not what it should be."""
    refusal: str | None = None
    """Why no source would help."""


@contextlib.contextmanager
def _busy(link: WorkerLink) -> Iterator[None]:
    """Says each second that this process is on its way, as storage doesn't tell what it has read:
    how long it may take at all is for its own retries to say."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(1.0):
            link.transferred(1)

    thread = threading.Thread(target=say, name="restoring", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _ElsewhereError(Exception):
    """Another rank's part is not what it should be."""


class Checkpointer:
    """Saves model, optimizer and the data's cursor in one commit, and restores them together.

        with Checkpointer("commits", model=model, optimizer=optimizer, data=data) as checkpointer:
            for images, labels in data:
                optimizer.zero_grad()
                (data.weight * loss(model(images), labels)).backward()
                optimizer.step()
                checkpointer.step()  # on all ranks: may stop or save

    Constructing it restores the newest state, the same one on every rank; do it after
    `init_process_group` and after the optimizer exists. The optimizer comes back with the learning
    rate it was saved with: where that follows the world size, set it afterwards.

    Under an agent, training waits only while the state is copied to shared memory, where it
    outlives the process; the agent verifies it there and brings it to the folder in the background.
    Elsewhere rank 0 writes it to the folder itself.

    Args:
        folder: for commits, a path or a URL that fsspec knows; shared by all pods of the job.
        model: replicated on every rank (may be wrapped in DistributedDataParallel), or sharded by
            fully_shard.
        optimizer: of the model.
        data: the ElasticDataset or ElasticSampler being iterated.
        every: steps (int) or time between saves. None: as often as keeps their cost under 1 % of
            the time, at most once a second.
        extra: more to save and restore, such as a learning rate scheduler.
        keep: commits to keep in the folder.
        link: to this pod's agent; found in the environment.
        clock: monotonic seconds.
        wall: Unix seconds.
        memory: the agent's shared memory; found in the environment.
        restore: False leaves it to the caller, who does it before the first step.

    Raises:
        StorageError: the folder can't be used, as rank 0 finds.
        MismatchError: the checkpoint is of another model or optimizer.
        ValueError: it was made with other data, see ElasticOrder.load_state_dict; or the optimizer
            is not of the model's parameters.
        TypeError: an argument is something else than is said here.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: ElasticOrder,
        every: int | timedelta | None = None,
        extra: Mapping[str, Stateful] | None = None,
        keep: int = 3,
        link: WorkerLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        memory: Memory | None = None,
        restore: bool = True,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int | timedelta | None):
            raise TypeError(f"every is {every!r}: expected a number of steps, or a timedelta")
        least = every if every is None or isinstance(every, int) else every.total_seconds()
        if least is not None and least <= 0:
            raise ValueError(f"every is {every}: expected a positive number of steps, or a time")
        if not isinstance(data, ElasticOrder):
            raise TypeError(
                f"data is a {type(data).__name__}: expected the ElasticDataset or ElasticSampler "
                "that training iterates, which knows what was consumed; "
                "ElasticDataset(data, batch_size=…, epochs=…) makes one of a map-style dataset"
            )
        self.storage = Storage(folder, keep=keep)
        self.data = data
        self.every = every
        self.link = link or WorkerLink.from_environment()
        self.run = 0
        """Number of this life of the worker processes, or of this round of an ElasticLoop; see
        elastic_trainer.data.audit and elastic_trainer.checkpoint.recovery."""
        self.parent = 0
        """The run whose state this one began with; 0 for none."""
        self.saved: int | None = None
        """The step saved last, or restored."""
        self.save_time = timedelta(0)
        """How long the last save held training up."""
        self._state = ModelState(model, optimizer, data, extra or {})
        self._memory = memory
        if memory is None and self.link.agent:
            self._memory = Memory.from_environment(self.link, every_rank=self._state.sharded)
        self._shards: Shards | None = None
        if self._state.sharded:
            mirror = self._memory.mirror if self._memory is not None else None
            self._shards = Shards(self.storage, self._state, self.link.committed, mirror)
        self._training = ""
        self._clock = clock
        self._wall = wall
        self._began = self._saved_at = clock()
        self._first = self._next = 0
        """Steps at which this run began, and at which rank 0 is asked again whether to save."""
        if restore:
            self.restore()

    @property
    def _group(self) -> ProcessGroup:
        return self.data.group

    # ---- restoring

    def restore(self, live: Identity = NOTHING, *, share: bool = False) -> None:
        """Every rank gets the newest state that can be had, and a new run begins. On all ranks.

        Args:
            live: of the state that this rank holds.
            share: where there is no state at all, rank 0's initial one is everybody's.
        """
        holding = self._holding(live)
        while True:
            holdings = self._group.gather(holding)
            if holdings[0].refusal is not None:
                self.link.give_up(holdings[0].refusal)
                raise StorageError(holdings[0].refusal)
            self._training = holdings[0].training
            found = level(holdings, sharded=self._state.sharded)
            if not found.loads:
                break
            outcome = self._load(found, holding)
            outcomes = self._group.gather((outcome.refusal, outcome.damaged))
            for rank, (refusal, _) in enumerate(outcomes):
                if refusal is not None:
                    reason = f"rank {rank} can't restore step {found.step}: {refusal}"
                    self.link.give_up(reason)
                    raise MismatchError(reason)
            holding = outcome.holding
            if any(damaged for _, damaged in outcomes):
                if Source.STORAGE in found.sources:
                    kept = tuple(one for one in holding.storage if one != found.identity)
                    holding = replace(holding, storage=kept)
                elif found.mirrors:
                    others = tuple(one for one in holding.mirrored if one[1] != found.identity)
                    holding = replace(holding, mirrored=others)
                continue  # once more, without it
            break
        self._hand_over(found, share)
        if not self.run and self._group.rank and os.environ.get("LOCAL_RANK", "0") == "0":
            check = threading.Timer(FOLDER_SECONDS, self.storage.warn_unless_of, [self._training])
            check.daemon = True
            check.start()
        self._begin(next_run(holdings), found)

    def _holding(self, live: Identity) -> Holding:
        holding = Holding(live)
        if self._memory is not None and live == NOTHING:
            # What a rank has live is newer than what it has in memory.
            holding = replace(holding, memory=self._memory.look(self._group))
            if self._memory.mirror is not None:
                holding = replace(holding, mirrored=self._memory.mirror.look(self._group))
        if self._group.rank:
            return holding
        last_run = max(self.data.last_run(), int(self._wall()) - 1)
        try:
            if not self.run:
                self.storage.prepare()
                self._training = self.storage.training()
            storage = tuple(commit.identity for commit in self.storage.commits())
        except StorageError as error:
            if not self.run:
                return replace(holding, refusal=str(error))
            log.warning("only live states are looked at: %s", error)
            storage = ()
        return replace(holding, storage=storage, training=self._training, last_run=last_run)

    def _load(self, found: Level, holding: Holding) -> _Outcome:
        """From this rank's own memory, or from storage."""
        source = found.sources[self._group.rank]
        try:
            if self._memory is not None:
                self._memory.restore_mirrored(self._training, found)
            if source in (Source.MEMORY, Source.MIRROR):
                self._load_memory(found.identity)
            elif source is Source.STORAGE:
                with _busy(self.link):
                    self._load_storage(found.identity)
            else:
                return _Outcome(holding)
        except _ElsewhereError:
            return _Outcome(holding, damaged=True)
        except (SlotError, StorageError) as error:
            log.warning("passing over step %d in %s: %s", found.step, source.value, error)
            kept = tuple(one for one in holding.memory if one[1] != found.identity)
            return _Outcome(replace(holding, memory=kept), damaged=True)
        except ValueError as error:
            return _Outcome(holding, refusal=str(error))
        return _Outcome(replace(holding, live=found.identity))

    def _load_memory(self, identity: Identity) -> None:
        assert self._memory is not None
        problem = found = None
        try:
            found = self._memory.read(self._training, identity, self._state.meshes)
        except SlotError as error:
            problem = error
        if self._state.sharded and any(self._group.gather(problem is not None)) and not problem:
            raise _ElsewhereError  # nothing was given: parts of two states are no state
        if found is None:
            raise problem or AssertionError
        state, label, slot = found
        self._state.give(state)
        if label.rank == self._group.rank:
            self._state.give_generators(state)
        if self._memory.saves:
            self._tell(slot, label.step)  # it may not have come to storage yet

    def _load_storage(self, identity: Identity) -> None:
        if self._shards is not None:
            self._shards.load(identity, self._group)
            return
        for commit in self.storage.commits():
            if commit.identity == identity:
                state = read_replica(self.storage, commit)
                self._state.give(state)
                self._state.give_generators(state)
                self.link.committed(commit.step, commit.round)
                return
        raise StorageError(f"{self.storage.location} has no commit of step {identity[1]} any more")

    def _hand_over(self, found: Level, share: bool) -> None:
        takers = found.takers
        if share and found.identity == NOTHING:
            takers = list(range(1, self._group.world))
        if self._group.rank in takers:
            state = receive(found.giver, self.link.transferred)
            try:
                self._state.give(state)
            except ValueError as error:
                self.link.give_up(f"rank {found.giver} trains something else: {error}")
                raise
        elif self._group.rank == found.giver and takers:
            send(self._state.take(), takers, self.link.transferred)

    def _begin(self, run: int, found: Level) -> None:
        self.run, self.parent = run, found.identity[0]
        self.data.begin(run=run, parent=self.parent, round_=self.link.round)
        self._first = self._next = self.data.steps
        self.saved = self.data.steps if self.parent else None
        self._began = self._saved_at = self._clock()
        self._make_room()

    # ---- training

    def step(self) -> None:
        """Call once after each `optimizer.step()`.

        Does not return when the world is about to change: the state is committed, and this process
        ends; its successor goes on from there.
        """
        self.data.applied()
        order = self.link.boundary(self.data.steps, self.data.consumed)
        if order is not Order.GO:
            self.commit(stored=self.link.commit_wanted)
            self.data.close()
            self.link.fenced(self.data.steps, order)
        else:
            self.save_if_due()

    def save_if_due(self) -> None:
        """After a step was applied. On all ranks, who save at the same steps."""
        if self.data.steps == self._first + 1:
            self._make_room()  # now the optimizer has its state too
        if not self._due():
            return
        try:
            self._save()
        except StorageError as error:
            # The last commit still stands, and the next may succeed. At a fence it is fatal.
            log.warning("going on without this commit: %s", error)

    def finish(self) -> None:
        """Training is complete: the last commit, in storage, and the word to the agent."""
        self.commit(stored=True)
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

    def commit(self, *, stored: bool) -> None:
        """Returns on every rank once this step is saved on all of them, so nobody leaves before.

        Args:
            stored: also wait until it is in storage.

        Raises:
            StorageError: it can't be brought there.
        """
        if self.saved != self.data.steps:
            self._save()
        began = self._clock()
        if self._shards is not None:
            # At a fence too: other worlds find it only there. One rank decides, as all must write.
            stored = self._is_stored(self._shards.settle())
            if not self._group.from_rank(0, stored):
                self._shards.write(
                    self._captured(), step=self.data.steps, run=self.run, round_=self.link.round
                )
        elif stored and self._group.rank == 0 and self._memory is not None:
            error = self.link.settle(storage=True)
            if error:
                raise StorageError(error)
        self.link.stalled(self._clock() - began)
        self._group.barrier()

    def _is_stored(self, newest: int) -> bool:
        """On rank 0, whether storage has all that was trained; `newest`: the step that this process
        brought there."""
        if self._group.rank != 0 or newest == self.data.steps:
            return True
        if self.data.steps != self._first:
            return False
        if not self.parent:
            return True
        # It was loaded, be it from memory alone, and nothing was done since.
        with contextlib.suppress(StorageError):
            found = self.storage.newest()
            return found is not None and found.identity == (self.parent, self.data.steps)
        return False

    def _due(self) -> bool:
        steps = self.data.steps
        if isinstance(self.every, int):
            return steps - max(self._first, self.saved or 0) >= self.every
        if steps < self._next:
            return False
        due, self._next = self._group.from_rank(
            0, self._decide() if self._group.rank == 0 else (False, 0)
        )
        return due

    def _decide(self) -> tuple[bool, int]:
        """By rank 0: whether to save now, and the step at which to ask again.

        Ranks' clocks differ, hence one decides for all; they hear it at a step all make, and as
        seldom as the speed so far allows.
        """
        interval = self.every if isinstance(self.every, timedelta) else None
        interval = interval or max(SHORTEST, self.save_time / SHARE)
        now, steps = self._clock(), self.data.steps
        left = interval.total_seconds() - (now - self._saved_at)
        due = left <= 0
        if self._group.world == 1:
            return due, steps + 1
        made = steps - self._first
        step_seconds = max(1e-6, (now - self._began) / made)
        wait = interval.total_seconds() if due else left
        return due, steps + max(1, min(made, int(wait / step_seconds)))

    def _make_room(self) -> None:
        """Too little shared memory is said at the start, and is no reason not to train."""
        problem = None
        # Asked for its state dict, a fresh optimizer of a sharded model makes a step.
        if self._memory is not None and (self._state.complete or not self._state.sharded):
            try:
                self._memory.prepare(lay_out(self._captured()))
            except SlotError as error:
                problem = str(error)
        if self._state.sharded:  # no rank's part is of use without the others'
            problem = next((one for one in self._group.gather(problem) if one), None)
        if problem is not None:
            log.warning("saving to %s instead of to memory: %s", self.storage.location, problem)
            self._memory = None

    def _captured(self) -> dict[str, Any]:
        return {**self._state.take(), "rng": self._state.generators()}

    def _save(self) -> None:
        """Raises StorageError if it had to be written to storage at once, and can't be."""
        began = self._clock()
        self.saved = self.data.steps
        try:
            step, run, shards = self.data.steps, self.run, self._shards
            round_ = self.link.round
            if self._memory is None and shards is not None:
                shards.write(self._captured(), step=step, run=run, round_=round_)
                return
            saved = self._save_to_memory()
            if shards is not None:
                shards.saved(*saved)
            elif saved == (None, None) and self._group.rank == 0:
                write_replica(
                    self.storage, step=step, run=run, state=self._captured(), round_=round_
                )
                self.link.committed(step)
        except StorageError:
            self.saved = None
            raise
        finally:
            self._saved_at = self._clock()
            self.save_time = timedelta(seconds=self._saved_at - began)
            self.link.stalled(self._saved_at - began)

    def _save_to_memory(self) -> tuple[Slot, Label] | tuple[None, None]:
        """Nothing where this rank has no slots, or there is no room."""
        if self._memory is None or not self._memory.saves:
            return None, None
        blob = lay_out(self._captured())
        label = Label(
            self._training,
            self.run,
            self.data.steps,
            self._group.rank,
            self._group.world,
            self._state.sharded,
            len(blob.skeleton),
            blob.size,
            self.link.round,
        )
        try:
            slot = self._memory.save(label, blob)
        except SlotError as error:
            log.warning("not saved to memory: %s", error)
            return None, None
        self._tell(slot, label.step)
        return slot, label

    def _tell(self, slot: Slot, step: int) -> None:
        assert self._memory is not None
        stores = self._group.rank == 0 and self._shards is None
        self._memory.tell(slot, step, self.storage.location if stores else "", self.storage.keep)
