"""ElasticLoop: model, optimizer, data and commits in one loop that survives its world's changes.

    loop = ElasticLoop("commits", model=net, optimizer=optimizer, data=data)
    for images, labels in loop:
        with loop.step():
            (loop.weight * cross_entropy(loop.model(images), labels)).backward()

A step may have several batches, see ElasticDataset's `global_batch`: gradients are added up, and
the last one's `with` averages them over the ranks and applies the step.

A round ends by a fence (somebody joins or leaves) or because a peer is lost. The process lives on:

    round over ─► collectives broken ─► out of the group ─► next place ─► new group ─► level

Level: the rank with the newest state gives it to those that have another; where nobody has it live,
it comes from shared memory or from storage (trainer/elastic_trainer/checkpoint/recovery.py).

A sharded model is made anew for each round, by the script's function, and gets its state from the
memory of the job's nodes: at an orderly change that of the last step, which all have saved there as
the round ended; after a loss the newest one that memory holds whole, from which on steps are made
again.

    round over ─► let go of model and group ─► next place ─► new group ─► make ─► state from memory

A step is applied whole or not at all: from the last collective (in `backward`) to the end of
`apply` there is none, so a round that breaks leaves every survivor between two steps. An `apply`
that communicates is refused, and one that fails half way ends the process. With a sharded model it
may communicate, as nobody goes on from what a round leaves in the processes.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash

from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.checkpoint.model_state import Stateful
from elastic_trainer.checkpoint.recovery import NOTHING
from elastic_trainer.checkpoint.split_state import split_states
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.division import Division
from elastic_trainer.data.stream import ElasticStream
from elastic_trainer.link.message import StopAt
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.batch_clock import clock_of
from elastic_trainer.loop.device_collectives import (
    DeviceCollectives,
    GlooCollectives,
    choose_gpu,
    collectives_of,
    collectives_on,
)
from elastic_trainer.loop.graph_guard import refuse_captured_collectives
from elastic_trainer.loop.guard import StepGuard
from elastic_trainer.loop.making import Made, forget_world, make_sharded, spare_older
from elastic_trainer.loop.opening import Opening
from elastic_trainer.loop.refusal import (
    refuse_both,
    refuse_closure,
    refuse_order,
    refuse_sharded,
    refuse_unaveraged,
    refuse_unequal,
    trained_parameters,
)
from elastic_trainer.loop.round_member import RoundMember, data_parallel
from elastic_trainer.loop.seed import seed_generators
from elastic_trainer.loop.state_feed import StateFeed
from elastic_trainer.loop.step import Step, Surroundings
from elastic_trainer.loop.undo import BufferBackup, ExtraBackup

log = logging.getLogger(__name__)

MOST_SPARED = 2
"""Times that collections leave out what there is: modules, of which the first steps bring more. The
script may still hold what it was given for the last world, which would then stay for ever."""


class ElasticLoop:
    """Iterates over `data`'s batches of this rank; `with loop.step():` around each one's training.

        loop = ElasticLoop("commits", model=net, optimizer=optimizer, data=data)
        for images, labels in loop:
            with loop.step():
                (loop.weight * cross_entropy(loop.model(images), labels)).backward()

    It connects the processes (don't call `init_process_group`), restores the newest state, wraps
    the model for each round, zeroes gradients before a step's first `with` and applies the step
    after its last, and commits. Under another launcher, or alone, it does the same without rounds.

    Where a step changes more than the optimizer does, `apply` does all of it, and `extra` names
    what it changes:

        def apply():
            scaler.unscale_(optimizer)
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(net)
            scheduler.step()

        loop = ElasticLoop(
            "commits", model=net, optimizer=optimizer, data=data, apply=apply,
            extra={"scaler": scaler, "average": average, "scheduler": scheduler},
        )

    A step's batches may come again if its round breaks: what the body keeps for itself (a running
    mean of the loss) should be kept after the `with`, once `loop.stepped` is True. What is in
    `extra` is put back where that was forgotten, with a warning for a scheduler.

    RANK, WORLD_SIZE and torchrun's others in `os.environ` follow the rounds. Before its first round
    a newcomer's RANK is -1.

    Args:
        folder: for commits, shared by all pods of the job.
        model: replicated on every rank, not wrapped.
        optimizer: of the model; one that communicates inside `step()` is refused.
        make: in place of model and optimizer, for a sharded model: makes both for the ranks that
            there are now, and is called in each round; returns (model, optimizer), or (model,
            optimizer, extra). They are `loop.module` and `loop.optimizer` until the round ends.
            Torch's generator is seeded alike on all ranks before it is called.
        data: the dataset, or stream, to train on.
        apply: applies a step, once all of its batches' gradients are added up and averaged over the
            ranks; `optimizer.step` if None. It may not communicate between ranks, unless the model
            is sharded.
        every: steps (int) or time between commits; None: see Checkpointer.
        extra: more to save and restore, by name: all else that `apply` changes, such as a
            GradScaler, schedulers, averages of weights, and other optimizers, whose gradients are
            zeroed too. With `make`, that returns it.
        keep: commits to keep.
        wrap: makes this round's `loop.model` of the model; DistributedDataParallel if None.
        begin: called with the loop at the start of each round, to set what follows the world size,
            such as the learning rate.
        reseed: seed torch's generator for each step by (data.seed, step, rank), so that dropout
            doesn't depend on what was interrupted.
        fresh, resume_from, storage_patience: as Checkpointer's.

    Raises:
        TypeError, ValueError: what was given doesn't go together, or won't do here.
        RuntimeError: at a step, something was stepped beside `apply`, `apply` communicated, or a
            loss was scaled and no `apply` given.
        StorageError, MismatchError: as Checkpointer, at the first iteration.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        make: Callable[[], Made] | None = None,
        data: ElasticDataset | ElasticStream,
        apply: Callable[[], object] | None = None,
        every: int | timedelta | None = None,
        extra: Mapping[str, Stateful] | None = None,
        keep: int = 3,
        wrap: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
        begin: Callable[[ElasticLoop], None] | None = None,
        reseed: bool = True,
        fresh: bool = False,
        resume_from: str = "",
        storage_patience: timedelta | None = None,
    ) -> None:
        refuse_both(model, optimizer, make, beside=bool(extra) or wrap is not None)
        if (gpu := choose_gpu(model, os.environ)) is not None:
            torch.cuda.set_device(gpu)
        self.module: torch.nn.Module
        """The model without its wrapping; a sharded one is of one round."""
        self.model: torch.nn.Module
        """The model as this round uses it."""
        self.optimizer: torch.optim.Optimizer
        self._make = make
        self._spared = 0
        self.data = data
        self.rank, self.world = 0, 1
        self._split = [] if model is None else split_states(model)
        # Looked up when it is called, as a scheduler that is made later replaces `step`.
        self._apply = (lambda: self.optimizer.step()) if apply is None else apply
        self._custom = apply is not None
        self._extra: Mapping[str, Stateful] = {}
        self._guard = StepGuard(custom=self._custom)
        if model is not None and optimizer is not None:
            parts = {part.name: part for part in self._split}
            self._take_up(model, optimizer, {**(extra or {}), **parts})
            self._guard.take_up(self.module, self.optimizer, self._extra)
        self._wrap = wrap or data_parallel
        self._begin = begin
        self._reseed = reseed
        self._member = RoundMember()
        self._identity = NOTHING
        self._said: list[Opening] = []
        """By rank, at the beginning of this round."""
        self.stepped = False
        """True if the last `with loop.step():` has applied a step."""
        self._begun = self._passed = self._broken = self._half_applied = False
        self._settling = 0
        """The step up to which modules may still make buffers and GPUs be initialised."""
        self._buffers = BufferBackup([])
        self._schedule: list[int] = []
        """How far the schedules were when the batch began."""
        self._stopping = False
        """The loop is to end after this step, by `stop`."""
        self._agreed: StopAt
        """At a fence, the stop that all ranks have heard of last, as this one was told it; of a
        replicated model the one that this rank has."""
        self._handed_over = False
        """All that who leaves had is with who stays."""
        self._all_stay = False
        """Nobody leaves, and all have a place in the next round."""
        self._committed = False
        """At a fence, all ranks have committed, as too few stay."""
        self._ended = self._said_complete = False
        """The last step is committed, and the agent knows."""
        self._undone: ExtraBackup | None = None
        """The step's body is to be done again, and what follows it is not to count."""
        self.link = WorkerLink.from_environment(broken=self._member.break_collectives)
        self.checkpointer = Checkpointer(
            folder,
            model=model,
            optimizer=optimizer,
            data=data,
            every=every,
            extra=self._extra,
            keep=keep,
            link=self.link,
            restore=False,
            fresh=fresh,
            resume_from=resume_from,
            storage_patience=storage_patience,
            tables=self._split,
            overlaps=True,
        )
        self._feed = StateFeed(
            self.link,
            lambda: self.checkpointer.state,
            self._replay,
            lambda: self.checkpointer.training,
            lambda: self.checkpointer.make_room(),
            possible=make is None and not self._split,
            nodes=lambda: max(1, self.world // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),
        )
        self._around = Surroundings(
            data,
            self._guard,
            self._member,
            begin=self._begin_batch,
            push=self._push,
            end=self._end_batch,
            undo=self._undo_step,
            peer_lost=lambda: self._member.peer_lost(self.link),
            forsaken=lambda: self.link.agent and self.world > 1 and self._member.forsaken,
            applies_together=make is not None,
        )
        refuse_order(data)
        if model is not None:
            refuse_sharded(model)
            if wrap is None:
                self._refuse_unaveraged()
        self._beginning = data.state_dict()
        # What a sharded model's passes communicate can't be told from its work: it isn't timed.
        timed = [] if model is None else [one for one in model.parameters() if one.requires_grad]
        self._clock = clock_of(timed)

    def _take_up(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful],
    ) -> None:
        self.module = self.model = model
        self.optimizer, self._extra = optimizer, extra
        if not self._custom:
            refuse_closure(optimizer)

    def _refuse_unaveraged(self) -> None:
        refuse_unaveraged(self.module, (self.optimizer, *self._extra.values()))

    @property
    def weight(self) -> float:
        """Factor for this batch's mean loss, see ElasticDataset."""
        return self.data.weight

    @property
    def steps(self) -> int:
        """Steps applied since the very beginning of training."""
        return self.data.steps

    def __iter__(self) -> Iterator[Any]:
        if self._half_applied:
            raise RuntimeError(
                "the last step's apply failed half way, so this process's state is of no step: "
                "expected a new process, which restores the last one that was applied whole"
            )
        if self._ended and self.link.agent:
            if self.data.cursor.epoch < self.data.epochs:
                raise RuntimeError(
                    f"training has ended at step {self.steps}, and the job's other nodes may have "
                    "gone: expected one iteration over the loop for all steps, see stop()"
                )
            return
        try:
            captured = refuse_captured_collectives(self._member.collectives)
            with self._guard.watching(), captured:
                yield from self._batches()
        except GeneratorExit:
            if not sys.is_finalizing():  # else the copy's thread is gone
                self.checkpointer.settle()
            self._warn_of_uncommitted()
            raise
        finally:
            if self._make is not None:
                gc.unfreeze()
            self._feed.close()
            self._forget_what_followed()

    def _batches(self) -> Iterator[Any]:
        while True:
            self._enter()
            self._say_if_complete()
            if self.link.stepless:
                self._stand(self.link.await_fence(self.data.steps))
                self._disconnect()
                continue
            over = False
            for batch in () if self._stopping else self._handed_out():
                self._passed = False
                self._clock.begin()
                yield batch
                self._clock.passed()
                if not self._passed:
                    raise RuntimeError("a batch was not trained on: put it in `with loop.step():`")
                self._forget_what_followed()
                if not self.stepped and not self._broken:
                    self._guard.refuse_moved(self._schedule)
                    if self.link.over:  # no collective of this batch would have noticed
                        self._undo_step()
                if self._broken:
                    self._stopping = False  # the step's body comes again, and says so again
                over = self._broken or (self.stepped and self._leave_round())
                if over or (self.stepped and self._stopping):
                    break
            over = over or self._broken
            # Who stops waits for nobody: the next collective of those who don't tells them so.
            together = not self._stopping or bool(self._split) or self._make is not None
            finish = partial(self.checkpointer.finish, together=together)
            ended = not over and self._attempt(finish)
            self._disconnect()
            if ended:
                self._ended, self._stopping = True, False
                return

    def _handed_out(self) -> Iterator[Any]:
        """The data's batches; they end where the round broke while ranks agreed on them."""
        batches = iter(self.data)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if not self.data.agrees or not self._member.peer_lost(self.link):
                    raise
                log.info("step %d begins anew: %s", self.steps + 1, error)
                self._broken = True  # and nothing of it was begun that could be undone
                return
            yield batch

    def stop(self) -> None:
        """End the loop after the present step, which is committed, as if the data ended there:

            for images, labels in loop:
                with loop.step():
                    ...
                if loop.stepped and loop.steps == 1000:
                    loop.stop()  # and no `break`, which commits nothing

        Call it on all ranks at the same step, so by a number that is the same on all of them: a
        rank that stops alone lets the others fail in their next step. It doesn't count in a step
        that is undone. Called in `begin`, it ends the loop before another step.
        """
        self._stopping = True

    def _say_if_complete(self) -> None:
        """A script that is run again after its end would else end without a word."""
        made = not self._ended and not self._said_complete and self.rank == 0
        if made and self.steps and self.data.cursor.epoch >= self.data.epochs:
            self._said_complete = True
            log.warning(
                "training is complete: by its newest commit all %d epochs were done at step %d, "
                "and no step is left; train on with more epochs, or anew in another folder",
                self.data.epochs,
                self.steps,
            )

    def _warn_of_uncommitted(self) -> None:
        """The loop was left by `break`, or by an error, whose state nobody may want to keep."""
        if self.rank == 0 and self.steps and self.checkpointer.saved != self.steps:
            log.warning(
                "the loop was left at step %d, which is not committed: where that was by break, "
                "call loop.stop() instead, which ends the loop with a commit",
                self.steps,
            )

    def step(self) -> Step:
        """Around a batch's forward and backward pass; at the end of a step's last batch it applies
        the step, unless the round broke."""
        return Step(self._around)

    # ---- one step

    def _begin_batch(self) -> AbstractContextManager[Any]:
        self.stepped = False
        steps = self.data.steps
        if not self._begun:
            self._begun = True
            self._zero_gradients()
            settling = steps < self._settling
            if self._reseed:
                seed_generators(hash((self.data.seed, steps, self.rank)), first=settling)
            if settling:
                self._buffers = BufferBackup(self._modules())
            # An aborted forward moves them (batch norm's running mean); the step is done again.
            self._buffers.save()
        self._schedule = self._guard.schedule()
        self._guard.in_body = True
        for part in self._split:
            part.begin_batch()
        return self.data.micro_batch(self.model)

    def _zero_gradients(self) -> None:
        for one in (self.optimizer, *self._extra.values()):
            if one is self.optimizer or isinstance(one, torch.optim.Optimizer):
                one.zero_grad(set_to_none=True)

    def _modules(self) -> list[torch.nn.Module]:
        others = [one for one in self._extra.values() if isinstance(one, torch.nn.Module)]
        return [self.module, *others]

    def _push(self) -> None:
        """The last of what a body communicates: of a step's split state, once all is known."""
        for part in self._split:
            part.end_batch(counts=self.data.weight != 0)
            if self.data.last:
                part.push((self.checkpointer.run, self.data.steps + 1))

    def _end_batch(self) -> None:
        if self._passed:
            raise RuntimeError("a batch was trained on twice: one `with loop.step():` for each")
        self._guard.refuse_moved(self._schedule)
        self._passed = True
        self._clock.end(self.data.batch_samples)
        if not self.data.last:
            return
        self._feed.apply((self.checkpointer.run, self.data.steps + 1))
        self._apply_step()
        self.data.applied()
        self._identity = (self.checkpointer.run, self.data.steps)
        self.stepped, self._begun = True, False

    def _apply_step(self) -> None:
        if self._make is not None:
            self._apply_sharded()
            return
        guard, collectives = self._guard, self._member.collectives()
        self.checkpointer.before_apply()
        self._half_applied = guard.applying = True
        try:
            self._apply()
            for part in self._split:
                part.apply()
        finally:
            guard.applying = False
        if self._member.collectives() != collectives:
            raise RuntimeError(
                "apply communicated between ranks, so a lost peer could leave a step half applied: "
                "gradients are averaged over the ranks already, and the same on all of them; what "
                "else is to be agreed on belongs into the body of `with loop.step():`"
            )
        self._half_applied = False

    def _apply_sharded(self) -> None:
        self.checkpointer.before_apply()
        self._guard.applying = True
        try:
            self._apply()
        finally:
            self._guard.applying = False
        # It may have communicated; on a GPU what a lost peer broke there has raised no error.
        self._member.confirm()

    def _replay(self) -> None:
        """Apply a step that others have made, before this process joins them."""
        # An apply that writes a file as rank 0 is not to do so here.
        self._guard.applying, self.rank = True, -1
        try:
            self._apply()
        finally:
            self._guard.applying, self.rank = False, 0

    def _undo_step(self) -> None:
        self.checkpointer.settle()  # what is put back would tear a copy that is under way
        self._take_back()
        self._passed = self._broken = True
        self._schedule = self._guard.schedule()
        self._undone = ExtraBackup(self.optimizer, self._extra)

    def _take_back(self) -> None:
        """Undo what was begun of a step."""
        self._buffers.restore()
        for part in self._split:
            part.undo()
        self._begun = False

    def _forget_what_followed(self) -> None:
        """After the `with` of a step that was undone: what was done to `extra` there is undone."""
        if self._undone is None:
            return
        if name := self._guard.moved(self._schedule):
            log.warning(
                "the scheduler %r was stepped for step %d, which was undone and is done again; it "
                "was put back: step it in ElasticLoop's apply",
                name,
                self.steps + 1,
            )
        self._undone.restore()
        self._undone = None

    def _leave_round(self) -> bool:
        """After a step: whether the round ends here; commits where one is due."""
        self.link.worked(*self._clock.take())
        for part in self._split:
            if (loads := part.loads(time.monotonic())) is not None:
                self.link.holds(loads)
        order = self.link.boundary(self.data.steps, self.data.consumed, self.data.waited())
        checkpointer = self.checkpointer
        if order is Order.GO:
            if not (self._attempt(self._move_on) and self._attempt(checkpointer.save_if_due)):
                return True
            self._feed.passed(self._identity)
            return False
        return self._stand(order)

    def _stand(self, order: Order) -> bool:
        """At a fence: tell whether the round ends here, where all was given away and committed."""
        checkpointer = self.checkpointer
        if order is Order.ABORTED:
            return True
        stands = self._committed = False
        while not stands:
            if not self._attempt(self._hand_over):
                return True
            if not self._handed_over and self.link.stepless:
                continue
            if not self._handed_over:  # the rest goes after the next steps
                if not self._attempt(checkpointer.save_if_due):
                    return True
                self._feed.passed(self._identity)
                return False
            if not self._commit_at_fence():
                return True
            self._feed.sync(self._identity, broken=False)
            stands = self.link.wait_at_fence(self.data.steps, self._agreed.fence)
        if self._agreed.leaving:
            self.data.close()
            self.link.leave()
        return True

    def _commit_at_fence(self) -> bool:
        """Commit what nobody would have in the next round; return False where the round broke."""
        checkpointer = self.checkpointer
        checkpointer.settle()
        if self._make is not None:
            commit = partial(
                checkpointer.commit,
                stored=self._agreed.commit,
                memory_stays=self._agreed.memory_stays,
                all_stay=self._all_stay,
            )
            if not self._attempt(commit):
                return False
            checkpointer.stand()
        elif self._agreed.commit and not self._committed:
            # Once: a new coordinator tells all of it again, of which some may hear that alone.
            self._committed = self._attempt(partial(checkpointer.commit, stored=True))
            return self._committed
        return True

    def _move_on(self) -> None:
        for part in self._split:
            part.move_on()

    def _hand_over(self) -> None:
        """Agree with all ranks on who leaves, as some may hear of another one before others do, and
        give parts of theirs to those who stay.

        Where each rank has all there is, no word of the others is waited for: ranks do something
        together only where too few stay, of which the last stop tells each of them, and which no
        later stop takes back.
        """
        if self._make is None and not self._split:
            assert self.link.told is not None
            self._agreed, self._handed_over = self.link.told, True
            return
        said = self.link.agreed_stop(self._member.group.gather)
        self._agreed = said[self.rank]
        gone = [one.leaving or one.displaced for one in said]
        self._all_stay = not any(gone)
        if all(gone):  # what is left waits for others, with all there is
            gone = [one.leaving for one in said]
        done = [part.hand_over(gone) for part in self._split]
        self._handed_over = all(done)

    def _attempt(self, collective: Callable[[], None]) -> bool:
        """Run a collective; return False where the round broke meanwhile."""
        try:
            collective()
        except RuntimeError:
            if not self._member.peer_lost(self.link):
                raise
            return False
        return True

    # ---- rounds

    def _enter(self) -> None:
        """Returns in a round, connected and with the common state."""
        if self._begun:  # the last iteration was left within a step
            self._take_back()
        while not (self._attempt(self._connect) and self._attempt(self._level)):
            self._disconnect()
        self._broken = False
        self._settling = self.data.steps + 2
        self._buffers = BufferBackup([])
        if self._begin is not None and not self.link.stepless:
            self._begin(self)
        sharded = self._make is not None
        self.link.joined(self.checkpointer.run, self._feed.serve(), sharded=sharded)

    def _connect(self) -> None:
        self._said = self._member.connect(
            self.link,
            self._opening,
            again=self._broken,
            meanwhile=self._feed.follow(),
            device=self._collectives(),
            sharded=self._make is not None,
        )
        self.rank, self.world = self._member.group.rank, self._member.group.world
        self.data.regroup(self._member.group)

    def _collectives(self) -> DeviceCollectives:
        agent = self.link.agent
        if self._make is None:
            return collectives_of(self.module, agent=agent)
        # It is made once the ranks are connected, on the device where fully_shard looks for it.
        if torch.cuda.is_available():
            return collectives_on(torch.device("cuda", torch.cuda.current_device()), agent=agent)
        return GlooCollectives()

    def _opening(self) -> Opening:
        if self._make is not None:
            # Which parts it has for this world is found out once the model is made.
            return Opening(self._stopping, "", self.link.shares, False, None)
        self._identity, training = self._feed.settle(self._identity)
        self.checkpointer.learn_training(training)
        trained = "\n".join(trained_parameters(self.module))
        return Opening(
            self._stopping,
            xxhash.xxh3_64_hexdigest(trained.encode()),
            self.link.shares,
            self.checkpointer.narrow,
            # Whether a split state is whole is found out by all together.
            None if self._split else self.checkpointer.opening(self._identity),
        )

    def _disconnect(self) -> None:
        """Out of the round; the state stays as it is."""
        self._broken = True
        # As what it is in this round: in the next one another rank may be the one that stores.
        self.checkpointer.settle()
        self._feed.sync(self._identity, broken=True)
        if self._make is None:
            self.model = self.module
        else:
            self.checkpointer.put_down()
        self._member.disconnect(self.link)

    def _make_anew(self, make: Callable[[], Made]) -> None:
        """A sharded model for this round's ranks; what was there of the last one's goes."""
        made_before = "module" in self.__dict__
        for name in ("module", "model", "optimizer"):
            self.__dict__.pop(name, None)
        self._extra, self._buffers, self._undone = {}, BufferBackup([]), None
        self._guard.put_down()
        if made_before:
            forget_world()
        if self._spared < MOST_SPARED:
            self._spared += 1
            spare_older()
        self._take_up(*make_sharded(make, self.data.seed))
        self._refuse_unaveraged()
        self.checkpointer.take_up(self.module, self.optimizer, self._extra)
        # Until a state is found, it is that of the beginning, whatever this process has seen.
        self._identity = NOTHING
        self.data.load_state_dict(self._beginning)

    def _level(self) -> None:
        """Every rank gets the newest state; the run begins."""
        if self._make is not None:
            self._make_anew(self._make)
        live = self._identity
        found = [one.available for one in self._said]
        spoiled = self._feed.spoiled
        share = self._make is None
        narrow = any(one.narrow for one in self._said)
        self.checkpointer.restore(live, share=share, spoiled=spoiled, said=found, narrow=narrow)
        self._identity = (self.checkpointer.parent, self.data.steps)
        self._feed.go_on_from(self._identity)
        if self._split and self._identity == NOTHING:
            # A rank that is lost before the first commit takes its part of the beginning with it.
            self.checkpointer.commit(stored=False)
        # Who stopped after the last step did so for those that hadn't come so far.
        self._stopping = any(one.stopping for one in self._said)
        # A process that was started in this round has not heard of them.
        self.data.divide(Division.decode(max(one.shares for one in self._said)))
        if self._make is not None:
            # Asked for its state, the optimizer has made a step of nothing until here.
            self._guard.take_up(self.module, self.optimizer, self._extra)
            return
        if len({one.trained for one in self._said}) > 1:
            refuse_unequal(self._member.group.gather(trained_parameters(self.module)))
        self.model = self._wrap(self.module) if self.world > 1 else self.module
        refuse_sharded(self.model)
