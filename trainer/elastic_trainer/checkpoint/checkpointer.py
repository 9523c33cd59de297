"""Checkpointer: after each optimizer step, the one place where training may stop or be saved."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch
from torch.optim.lr_scheduler import LRScheduler

from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.memory_saves import Destination, MemorySaves
from elastic_trainer.checkpoint.model_state import ModelState, Stateful
from elastic_trainer.checkpoint.recovery import NOTHING, Available, Identity, Recovery, Source
from elastic_trainer.checkpoint.refusal import (
    backend,
    refuse_beside_split,
    refuse_interval,
    refuse_other_data,
    refuse_silent_aborts,
    refuse_unsaved_split,
)
from elastic_trainer.checkpoint.restorer import Restorer
from elastic_trainer.checkpoint.save import Save
from elastic_trainer.checkpoint.save_schedule import SaveSchedule
from elastic_trainer.checkpoint.schedule_check import miscounted
from elastic_trainer.checkpoint.sharded import Shards
from elastic_trainer.checkpoint.split_state import SplitState, SplitStates
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import SOCKET_VARIABLE, WorkerLink
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.copier import Copier, copier_of
from elastic_trainer.store.errors import OwnershipError, StorageError, SupersededError
from elastic_trainer.store.ownership import RESUME_VARIABLE
from elastic_trainer.store.replica import write_replica
from elastic_trainer.store.slot import Label, Slot, SlotError, digest_of_location
from elastic_trainer.store.storage import Storage

HICCUP_SECONDS = 5.0
"""For so long at most a save in the training's own thread tries a storage again: the last commit
still stands, and the next save follows."""

_training: weakref.WeakSet[Checkpointer] = weakref.WeakSet()
"""This process's whose training hasn't ended."""

log = logging.getLogger(__name__)


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
            fully_shard; None where `take_up` brings one for each world.
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
        fresh: train from the beginning even if there are commits of which none can be used. A
            commit that can be used is resumed all the same, and a storage that can't be read is
            still waited for.
        resume_from: uid or name of another job whose folder this one takes over; found in the
            environment too (VOLCANO_ELASTIC_RESUME_FROM).
        storage_patience: how long to try a storage again that can't be read or written. None: what
            VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS says, else 60 s.
        tables: SplitTables of all ElasticEmbeddings of the model, whose `step()` comes before this
            one's. Each save brings them to the folder while training waits.
        overlaps: a state is copied to memory while training goes on: `before_apply` is called
            before each change of weights and moments.

    Raises:
        StorageError: the folder can't be used: it can't be read or written for so long, belongs to
            another job, isn't shared by all pods, or holds no commit that can be used.
        MismatchError: the checkpoint is of another model or optimizer.
        ValueError: it was made with other data, see ElasticData.load_state_dict; or the optimizer
            is not of the model's parameters; or, under an agent, this process trains something
            else, too.
        TypeError: an argument is something else than is said here.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        data: ElasticData,
        every: int | timedelta | None = None,
        extra: Mapping[str, Stateful] | None = None,
        keep: int = 3,
        link: WorkerLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        memory: Memory | None = None,
        restore: bool = True,
        fresh: bool = False,
        resume_from: str = "",
        storage_patience: timedelta | None = None,
        tables: SplitState | Sequence[SplitState] = (),
        overlaps: bool = False,
    ) -> None:
        refuse_interval(every)
        refuse_other_data(data)
        patience = None if storage_patience is None else storage_patience.total_seconds()
        self.storage = Storage(folder, keep=keep, retry_seconds=patience)
        self._patience = self.storage.policy.seconds
        """Seconds for which the agent tries again, which keeps nobody waiting."""
        self._place = digest_of_location(self.storage.location)
        self.data = data
        self.every = every
        self.link = link or WorkerLink.from_environment()
        self.parent = 0
        """The run whose state this one began with; 0 for none."""
        self.saved: int | None = None
        """The step saved last, or restored from where it is kept; a replica that is only in a
        process, or in a peer's memory, isn't."""
        self._split = SplitStates(tables)
        self._refuse_second()
        refuse_silent_aborts(backend(), os.environ)
        self._held: ModelState | None = None
        self._copier: Copier | None = None
        self._saves = MemorySaves(
            self.link, data, self._place, overlaps=overlaps and not self._split
        )
        self._memory = memory
        self._shards: Shards | None = None
        if model is not None and optimizer is not None:
            self._hold(model, optimizer, {**(extra or {}), **self._split.follow(data)})
        self._unfollowed: tuple[Save | None, ...] = ()
        """The save of a sharded state that no mirror follows yet, if there is such a one; None in
        it where this rank could not save."""
        self._left_alone: Identity | None = None
        """The sharded state with which this process left the last fence, where that waited for no
        mirror of it."""
        self._tried = 0
        """The step that was to be saved last."""
        self._narrow = False
        """Some node's memory has room for one state, which is lost as the next one is saved."""
        self._restorer = Restorer(
            self.storage,
            self._held,
            data,
            self.link,
            self._shards,
            self._split,
            tell=self._tell,
            resume_from=resume_from or os.environ.get(RESUME_VARIABLE, ""),
            fresh=fresh,
            wall=wall,
        )
        self._warned = False
        """True if a schedule that doesn't count the steps was warned of."""
        self._clock = clock
        self._schedule = SaveSchedule(clock)
        if restore:
            self.restore()
        else:
            self._restorer.open_storage_early(self._memory)

    def _hold(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful],
    ) -> None:
        self._held = state = ModelState(model, optimizer, self.data, extra)
        refuse_unsaved_split(state.model, self._split)
        refuse_beside_split(self._split, extra, sharded=state.sharded)
        # One for all worlds: it knows what memory it has pinned.
        self._copier = self._copier or copier_of(state.model)
        self._saves.copy_by(self._copier)
        if self._memory is None and self.link.agent:
            self._memory = Memory.from_environment(
                self.link, every_rank=state.sharded, copier=self._copier
            )
        if state.sharded:
            mirror = self._memory.mirror if self._memory is not None else None
            self._shards = Shards(self.storage, state, self.link.committed, mirror)

    def take_up(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful],
    ) -> None:
        """Go on with a sharded model that was made for this process's new world; `restore` follows.

        Raises:
            TypeError, ValueError: as the constructor.
        """
        self.put_down()
        self._hold(model, optimizer, extra)
        self._restorer.hold(self._held, self._shards)

    def put_down(self) -> None:
        """Let go of a sharded model, as its world is over on all ranks. What memory holds of its
        states stays; what was on its way to other nodes or to storage doesn't arrive."""
        if self._shards is not None:
            self._shards.leave()
        self._unfollowed = ()
        self._held, self._shards, self._memory = None, None, self._memory and self._memory.renew()
        self._restorer.hold(None, None)

    def _refuse_second(self) -> None:
        """An agent stops its workers at the steps of one training, and keeps one state of each."""
        if not self.link.agent:
            return
        self._agent = os.environ.get(SOCKET_VARIABLE, "")
        for other in _training:
            if other._agent == self._agent and other.storage.location != self.storage.location:
                raise ValueError(
                    f"this process trains with commits in {other.storage.location} already: "
                    f"expected one Checkpointer or ElasticLoop for all that is trained, so that "
                    "one commit holds it: a module of all models as model=, and all but one "
                    "optimizer in extra=. One of a later training may be made after the first has "
                    "finished"
                )
        _training.add(self)

    @property
    def run(self) -> int:
        """Number of this life of the worker processes, or of this round of an ElasticLoop; see
        elastic_trainer.data.audit and elastic_trainer.checkpoint.recovery."""
        return self._restorer.run

    @property
    def save_time(self) -> timedelta:
        """Return how long the last save held training up."""
        return self._schedule.save_time

    @property
    def state(self) -> ModelState:
        """Return what is saved and restored."""
        assert self._held is not None
        return self._held

    @property
    def training(self) -> str:
        """Which training it is; empty until that is known."""
        return self._restorer.training

    def learn_training(self, training: str) -> None:
        """Go on with a training that the folder couldn't tell of yet."""
        self._restorer.training = training

    @property
    def _group(self) -> ProcessGroup:
        return self.data.group

    # ---- restoring

    def opening(self, live: Identity) -> Available | None:
        """Return what `restore` is to be told of this rank, see Restorer.opening."""
        return self._restorer.opening(self._memory, live)

    @property
    def narrow(self) -> bool:
        """Return whether this node's memory is known to have room for one replicated state."""
        return self._shards is None and self._memory is not None and self._memory.narrow

    def restore(
        self,
        live: Identity = NOTHING,
        *,
        share: bool = False,
        spoiled: bool = False,
        said: Sequence[Available | None] = (None,),
        narrow: bool = False,
    ) -> None:
        """Give every rank the newest state that can be had, and begin a new run. On all ranks.

        Storage is asked only where nobody has a live state.

        Args:
            live: of the state that this rank holds.
            share, spoiled: as Restorer.restore's.
            said: by rank, what `opening` returned in this round; the same on all ranks.
            narrow: some rank is `narrow`, likewise; ranks ask again after the round's first step.

        Raises:
            StorageError, MismatchError: as the constructor.
        """
        self.settle()
        self._narrow = narrow  # not as it was in the last round, of which newcomers don't know
        live = self._split.meet(self._group, live)
        found = self._restorer.restore(self._memory, live, share=share, spoiled=spoiled, said=said)
        identity = found.identity
        self.parent = identity[0]
        self.data.begin(run=self.run, parent=self.parent, round_=self.link.round)
        self.link.plans(self.data.total)
        self.saved = self.data.steps if self.parent and self._is_kept(found) else None
        self._schedule.begin(self.data.steps)
        if self._memory is not None and identity != NOTHING:
            self._memory.note_origin(self._restorer.training, self._place, identity)
        self._split.level(identity, self.link.round, self.storage)
        self.make_room()
        if self._memory is not None and self._memory.mirror is not None:
            self._memory.mirror.begin(self._group.world, found.world)
        if identity != NOTHING:
            self._mirror_restored()

    def _mirror_restored(self) -> None:
        """Bring each part of a sharded state that was restored to two nodes' memory again, beside
        this world's first steps, or before them where all of it was one node's; on all ranks."""
        shards, memory = self._shards, self._memory
        if shards is None or memory is None or memory.mirror is None:
            return
        training, identity = self._restorer.training, self._identity
        own = memory.find_own(training, identity, self._group)
        held = own is not None and memory.mirror.holds(training, identity, self._group)
        said = self._group.gather((held, memory.mirror.spared, memory.mirror.was_alone))
        # Until then a node's loss takes all back to what was on two nodes before.
        mirrored = min(identity, max(spared for _, spared, _ in said))
        memory.spare(training, identity, mirrored)
        if all(one for one, _, _ in said):
            memory.mirror.found(identity)
            return
        memory.mirror.spared = mirrored
        shards.mirror(own or self._save_to_memory())
        if any(was_alone for _, _, was_alone in said):
            shards.await_mirrors()

    def _is_kept(self, found: Recovery) -> bool:
        """Tells whether the state is in storage, or on its way there; on other ranks than 0,
        whether it is in their node's memory. `commit` asks that of a sharded one, on all ranks at
        once."""
        if self._shards is not None or Source.STORAGE in found.sources:
            return True
        identity, claimed = self._saves.told
        return identity == found.identity and (self._group.rank != 0 or claimed == self.run)

    def _give_up(self, error: Exception) -> NoReturn:
        """No other try would help: say so to the agent, and raise it."""
        self.link.give_up(str(error))
        raise error

    # ---- training

    @property
    def _identity(self) -> Identity:
        """Identifies the state: the run that made its last step, and that step."""
        made_here = self.data.steps != self._schedule.first or not self.parent
        return (self.run if made_here else self.parent, self.data.steps)

    def step(self) -> None:
        """Call once after each `optimizer.step()`.

        Does not return when the world is about to change: the state is committed, and this process
        ends; its successor goes on from there.
        """
        self.data.applied()
        self._split.refuse_other_step(self.data.steps)
        order = self.link.boundary(self.data.steps, self.data.consumed, self.data.waited())
        if order is not Order.GO:
            self._leave_round()
        self.save_if_due()

    def _leave_round(self) -> NoReturn:
        """At a fence: commit what nobody would have in the next round, again where others begin to
        leave before all stand there, and end with the round."""
        stands = False
        while not stands:
            said = self.link.agreed_stop(self._group.gather)
            told = said[self._group.rank]
            self.commit(stored=told.commit, memory_stays=told.memory_stays)
            self.data.close()
            stands = self.link.wait_at_fence(self.data.steps, told.fence)
        self.link.fenced(self.data.steps, Order.LEAVE if told.leaving else Order.FENCE)

    def before_apply(self) -> None:
        """Once a step's gradients are there, before it changes anything: that comes after the copy
        of what was saved."""
        self._saves.precede()

    def settle(self, *, waits: bool = True) -> None:
        """Tell the agent of the save that was under way, once it is whole.

        Args:
            waits: for the copy's end; else another call finds it.
        """
        ended = self._saves.settle(waits=waits)
        if ended is None:
            return
        self._schedule.save_time += timedelta(seconds=ended.seconds())
        # Of a sharded state it may be torn on this rank alone, and all save at the same steps.
        if not ended.close() and self.saved == ended.label.step and self._shards is None:
            self.saved = None

    def save_if_due(self) -> None:
        """After a step was applied. On all ranks, who save at the same steps."""
        self.settle(waits=False)
        if self.data.steps == self._schedule.first + 1:
            self.make_room()  # now the optimizer has its state too
            if self.link.agent and self._shards is None:
                self._narrow = any(self._group.gather(self.narrow))
        if self._shards is not None and self._shards.superseded is not None:
            self._give_up(self._shards.superseded)
        # Where all wait for rank 0's storage, all save at the same steps, whatever came of it.
        last = self._tried if self._narrow else self.saved or 0
        if not self._schedule.is_due(self.data.steps, self.every, last, self._group):
            return
        self._tried = self.data.steps
        unstored = self._await_storage()
        try:
            with self.storage.patience(HICCUP_SECONDS):
                self._save(waits=False, unstored=unstored)
        except (SupersededError, OwnershipError) as error:
            self._give_up(error)
        except StorageError as error:
            # The last commit still stands, and the next may succeed. At a fence it is fatal.
            log.warning("going on without this commit: %s", error)

    def finish(self, *, together: bool = True) -> None:
        """Training is complete: the last commit, in storage, and the word to the agent.

        Args:
            together: False where other ranks may not come here: nobody is waited for. Not for a
                sharded state, nor with tables.
        """
        self.commit(stored=True, together=together)
        self.data.close()
        _training.discard(self)
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
        _training.discard(self)

    def commit(
        self,
        *,
        stored: bool,
        together: bool = True,
        memory_stays: bool = False,
        all_stay: bool = False,
    ) -> None:
        """Returns on every rank once this step is saved on all of them, so nobody leaves before.

        Args:
            stored: also wait until it is in storage.
            together: as `finish`'s.
            memory_stays: what is in this node's memory will be there for the next round, which
                needs no storage where each part of a sharded state is on two such nodes: there it
                is brought.
            all_stay: all processes have a place in the next round, alike on all ranks. A sharded
                state that is in memory then waits for neither mirror nor storage: what is on two
                nodes, or in storage, stays there, so a node's loss costs what it cost before. Not
                twice in a row, as the loss of a node that has joined meanwhile would cost more.

        Raises:
            StorageError: it can't be brought there.
        """
        self.settle()
        unstored = self._await_storage() if together else None
        if self._is_unsaved():
            if self._shards is not None and not (all_stay and self._may_go_on_alone):
                self._shards.await_mirrors()  # what they spare may take the room
            try:
                self._save(unstored=unstored, follows=not all_stay)
            except SupersededError as superseded:
                self._give_up(superseded)
        self.settle()
        began = self._clock()
        self.link.commits()
        kept = all_stay and self._is_in_memory(stored)
        self._left_alone = self._identity if kept else None
        if self._shards is not None and not kept and not self._outlives_fence(memory_stays, stored):
            # At a fence too: other worlds find it only there. One rank decides, as all must write.
            stored = self._is_stored(self._flush_shards())
            if not self._group.from_rank(0, stored):
                self._shards.write(
                    self.state.capture(), step=self.data.steps, run=self.run, round_=self.link.round
                )
        elif self._shards is None and stored and self._saves.told == (self._identity, self.run):
            error = self.link.settle(storage=True)
            if error:
                raise StorageError(error)
        self.link.stalled(self._clock() - began)
        if together:
            self._group.barrier()

    def stand(self) -> None:
        """Know that all ranks have committed this step, and leave their round with it: where memory
        holds all of it, the next one needs no storage."""
        self._restorer.stand(self._identity)

    def _is_unsaved(self) -> bool:
        """Return whether this rank has to save, or all of them to help another."""
        unsaved = self.saved != self.data.steps
        if self._split:
            unsaved = any(self._group.gather(unsaved))
        return unsaved

    @property
    def _may_go_on_alone(self) -> bool:
        """Return whether this rank's node has memory for one more part of each of its ranks, and no
        mirrors that the last fence didn't wait for are missing still."""
        memory = self._memory
        if memory is None or memory.mirror is None or not memory.has_room():
            return False
        return memory.mirror.kept is not None or self._left_alone in (None, self._identity)

    def _is_in_memory(self, stored: bool) -> bool:
        """Return whether each rank's part of this state is in its node's memory, which will do
        until the next world has mirrored it, and no rank was told to store it; on all ranks."""
        there = not stored and self._may_go_on_alone
        if self._memory is not None and there:
            self.link.settle(storage=False)  # until its agent has verified it
            training, identity = self._restorer.training, self._identity
            there = self._memory.find_own(training, identity, self._group) is not None
        return all(self._group.gather(there))

    def _outlives_fence(self, memory_stays: bool, stored: bool) -> bool:
        """Return whether all parts of this state are in the memory of two nodes each that stay, and
        that does for all ranks; on all ranks, of which some may have heard otherwise than others.
        """
        assert self._shards is not None
        for save in self._unfollowed:
            self._shards.saved(save)
        self._unfollowed = ()
        mirrored = not stored and self._shards.is_mirrored(self._identity)
        said = self._group.gather((mirrored, memory_stays))
        stays = [one for _, one in said]
        return all(one for one, _ in said) and self._shards.outlives(
            self._restorer.training, self._identity, stays
        )

    def _flush_shards(self) -> int:
        assert self._shards is not None
        try:
            return self._shards.flush()
        except SupersededError as error:
            self._give_up(error)

    def _is_stored(self, newest: int) -> bool:
        """On rank 0, whether storage has all that was trained; `newest`: the step that this process
        brought there."""
        if self._group.rank != 0 or newest == self.data.steps:
            return True
        untrained = self.data.steps == self._schedule.first and not self.parent
        return untrained or self._storage_has_it()

    def _storage_has_it(self) -> bool:
        """Return whether this state was restored, be it from memory alone, and can be used in
        storage."""
        if self.data.steps == self._schedule.first and self.parent:
            with contextlib.suppress(StorageError):
                found = self.storage.newest()
                return found is not None and found.identity == self._identity
        return False

    def make_room(self) -> None:
        """Have memory for saves before the first one. Too little is said at the start, and is no
        reason not to train."""
        problem = f"rank {self._group.rank} has no shared memory" if self._memory is None else None
        # Asked for its state, a sharded model's fresh optimizer that isn't torch's makes a step.
        if self._memory is not None and (self.state.complete or not self.state.sharded):
            try:
                self._memory.prepare(lay_out(self.state.capture()))
            except SlotError as error:
                problem = str(error)
        if self.state.sharded:  # no rank's part is of use without the others'
            problem = next((one for one in self._group.gather(problem) if one), None)
        if problem is not None and self._memory is not None:
            log.warning("saving to %s instead of to memory: %s", self.storage.location, problem)
            self._memory = None

    def _save(
        self, *, waits: bool = True, unstored: str | None = None, follows: bool = True
    ) -> None:
        """Save this step to memory, or where there is none, to storage.

        Args:
            unstored: as Memory.ready's.
            waits: also for a storage that was silent before and hasn't answered since. If False
                nothing is saved there: that was waited for, and said, by the first save.
            follows: mirror and storage of a sharded state follow at once.

        Raises:
            StorageError: it had to be written to storage at once, and can't be.
        """
        self._warn_of_schedules()
        self.settle()
        began = self._clock()
        self.link.commits()
        self._split.save(self.storage, self._identity)
        self.saved = self.data.steps
        try:
            step, run, shards = self.data.steps, self.run, self._shards
            round_ = self.link.round
            if self._memory is None and shards is not None:
                shards.write(self.state.capture(), step=step, run=run, round_=round_)
                return
            saved = self._save_to_memory(unstored)
            self._unfollowed = ()
            if shards is not None and not follows:
                self._unfollowed = (saved,)
            elif shards is not None:
                shards.saved(saved)
            elif saved is None and self._group.rank == 0 and not self._storage_has_it():
                if self.storage.calls.stuck and not waits:
                    self.saved = None
                    return
                commit = write_replica(
                    self.storage, step=step, run=run, state=self.state.capture(), round_=round_
                )
                self.link.committed(step, place=self._place, size=commit.size)
                if self._memory is not None:
                    self._memory.note_stored(self._identity)
        except StorageError:
            self.saved = None
            raise
        finally:
            ended = self._clock()
            self._schedule.saved(began, ended)
            self.link.stalled(ended - began)

    def _warn_of_schedules(self) -> None:
        """Once, on rank 0."""
        if self._warned or self._group.rank:
            return
        counts = {
            name: part.last_epoch
            for name, part in self.state.extra.items()
            if isinstance(part, LRScheduler)
        }
        cursor = self.data.cursor
        warning = miscounted(counts, steps=cursor.step, epoch=cursor.epoch)
        if warning is not None:
            self._warned = True
            log.warning(warning)

    def _await_storage(self) -> str | None:
        """On all ranks: where a node has one slot, wait until storage has what was saved last, of
        which rank 0's agent alone knows; return why it hasn't, None where nobody need know."""
        if not self._narrow:
            return None
        self.settle()  # its agent knows of all
        memory = self._memory if self._group.rank == 0 else None
        return self._group.from_rank(0, memory.unstored() if memory is not None else "")

    def _save_to_memory(self, unstored: str | None = None) -> Save | None:
        """Return this step's save; None where memory can't have it, as MemorySaves.save."""
        return self._saves.save(
            self._memory,
            self.state,
            self._restorer.training,
            self._identity,
            self._destination,
            unstored,
        )

    def _tell(self, slot: Slot, label: Label) -> None:
        assert self._memory is not None
        self._saves.tell(self._memory, slot, label, self._destination)

    @property
    def _destination(self) -> Destination | None:
        """Return where this rank's agent brings what is saved in this run; None: another's does,
        or the ranks of a sharded state themselves."""
        if self._group.rank != 0 or self._shards is not None:
            return None
        return Destination(
            self.storage.location,
            self.storage.keep,
            self.run,
            self._restorer.token,
            self._patience,
        )
