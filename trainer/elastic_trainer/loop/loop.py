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

A step is applied whole or not at all: from the last collective (in `backward`) to the end of
`optimizer.step()` there is none, so a round that breaks leaves every survivor between two steps.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    TCPStore,
    default_pg_timeout,
    distributed_c10d,
)
from torch.nn.parallel import DistributedDataParallel

from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.checkpoint.model_state import Stateful
from elastic_trainer.checkpoint.recovery import NOTHING
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.process_group import ProcessGroup
from elastic_trainer.link.worker_link import Order, Place, WorkerLink
from elastic_trainer.loop.connection import Connections

CONNECT_SECONDS = 10.0
"""For all of a round's ranks to find one another."""
PATIENCE_SECONDS = 3.0
"""How long an error waits for the word that a peer was its cause, if a peer's connection failed."""
SHUT_AGAIN_SECONDS = 0.01
"""While the main thread is on its way out of a round, it may still be opening connections."""

log = logging.getLogger(__name__)


class ElasticLoop:
    """Iterates over `data`'s batches of this rank; `with loop.step():` around each one's training.

        loop = ElasticLoop("commits", model=net, optimizer=optimizer, data=data)
        for images, labels in loop:
            with loop.step():
                (loop.weight * cross_entropy(loop.model(images), labels)).backward()

    It connects the processes (don't call `init_process_group`), restores the newest state, wraps
    the model for each round, zeroes gradients before a step's first `with` and steps the optimizer
    after its last, and commits. Under another launcher, or alone, it does the same without rounds.

    A step's batches may come again if its round breaks: what the body keeps for itself (a running
    mean of the loss) should be kept after the `with`, once `loop.stepped` is True.

    Args:
        folder: for commits, shared by all pods of the job.
        model: replicated on every rank, not wrapped.
        optimizer: of the model; one that communicates inside `step()` is refused.
        data: the dataset to train on.
        every: steps (int) or time between commits; None: see Checkpointer.
        extra: more to save and restore.
        keep: commits to keep.
        wrap: makes this round's `loop.model` of the model; DistributedDataParallel if None.
        begin: called with the loop at the start of each round, to set what follows the world size,
            such as the learning rate.
        reseed: seed torch's generator for each step by (data.seed, step, rank), so that dropout
            doesn't depend on what was interrupted.
        fresh, resume_from, storage_patience: as Checkpointer's.

    Raises:
        TypeError, ValueError: what was given doesn't go together, or won't do here.
        StorageError, MismatchError: as Checkpointer, at the first iteration.
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
        wrap: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
        begin: Callable[[ElasticLoop], None] | None = None,
        reseed: bool = True,
        fresh: bool = False,
        resume_from: str = "",
        storage_patience: timedelta | None = None,
    ) -> None:
        self.module = model
        self.model: torch.nn.Module = model
        """The model as this round uses it."""
        self.optimizer = optimizer
        self.data = data
        self.rank, self.world = 0, 1
        self._wrap = wrap or _data_parallel
        self._begin = begin
        self._reseed = reseed
        self._connections: Connections | None = None
        self._excepthooks = sys.excepthook, sys.excepthook
        """Before and after torch's, which begins lines with the rank, was put before it."""
        self._store: TCPStore | None = None
        self._carried = False
        """The place is not the one that this process was started for."""
        self._identity = NOTHING
        self.stepped = False
        """Whether the last `with loop.step():` has applied a step."""
        self._begun = self._passed = self._broken = self._iterating = self._applying = False
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.link = WorkerLink.from_environment(broken=self._break)
        self.checkpointer = Checkpointer(
            folder,
            model=model,
            optimizer=optimizer,
            data=data,
            every=every,
            extra=extra,
            keep=keep,
            link=self.link,
            restore=False,
            fresh=fresh,
            resume_from=resume_from,
            storage_patience=storage_patience,
        )
        _refuse(model, optimizer, data)
        # What wraps an optimizer will do as well, but may have no hooks.
        with suppress(AttributeError):
            optimizer.register_step_pre_hook(self._refuse_step)

    @property
    def weight(self) -> float:
        """Factor for this batch's mean loss, see ElasticDataset."""
        return self.data.weight

    @property
    def steps(self) -> int:
        """Steps applied since the very beginning of training."""
        return self.data.steps

    def __iter__(self) -> Iterator[Any]:
        self._iterating = True
        try:
            yield from self._batches()
        finally:
            self._iterating = False

    def _batches(self) -> Iterator[Any]:
        while True:
            self._enter()
            for batch in self.data:
                self._passed = False
                yield batch
                if not self._passed:
                    raise RuntimeError("a batch was not trained on: put it in `with loop.step():`")
                if self._broken or (self.stepped and self._leave_round()):
                    break
            else:
                if self._attempt(self.checkpointer.finish):
                    self._disconnect()
                    return
            self._disconnect()

    def step(self) -> _Step:
        """Around a batch's forward and backward pass; at the end of a step's last batch it applies
        the step, unless the round broke."""
        return _Step(self)

    # ---- one step

    def _begin_batch(self) -> AbstractContextManager[Any]:
        self.stepped = False
        if not self._begun:
            self._begun = True
            self.optimizer.zero_grad(set_to_none=True)
            if self._reseed:
                torch.manual_seed(hash((self.data.seed, self.data.steps, self.rank)))
            # An aborted forward moves them (batch norm's running mean); the step is done again.
            self._buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        return self.data.micro_batch(self.model)

    def _end_batch(self) -> None:
        if self._passed:
            raise RuntimeError("a batch was trained on twice: one `with loop.step():` for each")
        self._passed = True
        if not self.data.last:
            return
        self._applying = True
        self.optimizer.step()
        self._applying = False
        self.data.applied()
        self._identity = (self.checkpointer.run, self.data.steps)
        self.stepped = True
        self._begun = False

    def _refuse_step(self, *_: Any) -> None:
        """A script that was a plain loop may still have its own; each step would be made twice."""
        if self._iterating and not self._applying:
            raise RuntimeError(
                "optimizer.step() was called beside ElasticLoop, which calls it at the end of "
                "`with loop.step():`; take it out, and zero_grad() too"
            )

    def _undo_step(self) -> None:
        self._take_back()
        self._passed = self._broken = True

    def _take_back(self) -> None:
        """What was begun of a step leaves no trace."""
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._begun = False

    def _leave_round(self) -> bool:
        """After a step: whether the round ends here; commits where one is due."""
        order = self.link.boundary(self.data.steps, self.data.consumed)
        checkpointer = self.checkpointer
        if order is Order.GO:
            return not self._attempt(checkpointer.save_if_due)
        if order is Order.OVER:
            return True
        if self.link.commit_wanted and not self._attempt(partial(checkpointer.commit, stored=True)):
            return True
        if order is Order.LEAVE:
            self.data.close()
            self.link.fenced(self.data.steps, order)
        self.link.stood(self.data.steps)
        return True

    def _attempt(self, collective: Callable[[], None]) -> bool:
        """Whether it came to its end; False where the round broke meanwhile."""
        try:
            collective()
        except RuntimeError:
            if not self._peer_lost():
                raise
            return False
        return True

    def _peer_lost(self) -> bool:
        """Asked after an error: whether it came of a lost peer; it is the training's own if not."""
        connections = self._connections
        intact = connections is not None and connections.intact(self.world - 1)
        return self.link.lost(0.0 if intact else PATIENCE_SECONDS)

    # ---- rounds

    def _enter(self) -> None:
        """Returns in a round, connected and with the common state."""
        if self._begun:  # the last iteration was left within a step
            self._take_back()
        while not (self._attempt(self._connect) and self._attempt(self._level)):
            self._disconnect()
        self._broken = False
        if self._begin is not None:
            self._begin(self)
        if self._carried:
            self.link.joined()

    def _connect(self) -> None:
        place = self._next_place()
        if place is not None:
            self._connections = connections = Connections()
            if self.link.over:  # said before there was anything to break
                raise RuntimeError("the round was over before this rank was in it")
            self._store = TCPStore(
                place.address,
                place.port,
                place.world,
                is_master=False,
                timeout=timedelta(seconds=CONNECT_SECONDS),
                wait_for_workers=False,
            )
            # Who waits for a peer's connection waits at no connection that could be shut down: one
            # that dies just then is noticed by this time only.
            before = sys.excepthook
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=place.rank,
                world_size=place.world,
                timeout=timedelta(seconds=CONNECT_SECONDS),
            )
            self._excepthooks = before, sys.excepthook
            group = distributed_c10d._get_default_group()
            group._get_backend(torch.device("cpu"))._set_default_timeout(default_pg_timeout)
            connections.seal()
        elif dist.is_torchelastic_launched() and not dist.is_initialized():
            dist.init_process_group("gloo")
        member = ProcessGroup.current()
        self.rank, self.world = member.rank, member.world
        self.data.regroup(member)

    def _next_place(self) -> Place | None:
        """None where there are no rounds."""
        if not self.link.agent:
            return None
        if self.link.round and not self._broken:
            names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
            rank, world, port = (int(os.environ[name]) for name in names)
            return Place(self.link.round, rank, world, os.environ["MASTER_ADDR"], port)
        self._carried = True
        if not self.link.round:
            _rehearse()
        return self.link.next_place()

    def _disconnect(self) -> None:
        """Out of the round; the state stays as it is."""
        self._broken = True
        self.model = self.module
        if self._connections is not None:
            self._connections.forget()
        if self.link.agent and dist.is_initialized():
            # gloo's own thread hears of its end after up to 10 ms: somebody else waits for that.
            group = [distributed_c10d._get_default_group()]
            dist.destroy_process_group()
            threading.Thread(target=group.clear, name="old group").start()
        before, of_round = self._excepthooks
        if sys.excepthook is of_round:
            sys.excepthook = (
                before  # else an error's lines begin with the rank in each round so far
            )
        # A group is named by how many were made, and ranks find one another by the name; one whose
        # making failed was counted, but can't be destroyed.
        distributed_c10d._world.group_count = 0
        self._store = None

    def _level(self) -> None:
        """Every rank gets the newest state; the run begins."""
        self.checkpointer.restore(self._identity, share=True)
        self._identity = (self.checkpointer.parent, self.data.steps)
        self.model = self._wrap(self.module) if self.world > 1 else self.module

    def _break(self) -> None:
        """In the link's thread: the round is over, whatever the main thread waits for."""
        connections = self._connections
        if connections is not None and connections.shut():
            threading.Thread(
                target=_shut_until_forgotten, args=(connections,), name="break", daemon=True
            ).start()


def _rehearse() -> None:
    """A newcomer's first group and its first collectives take 50 ms longer than later ones: it
    makes them alone, while the others train on."""
    excepthook = sys.excepthook
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    dist.all_gather_object([None], None)
    # On "meta" it draws no numbers, which would change those that the script draws next.
    model = _data_parallel(torch.nn.Linear(1, 1, device="meta").to_empty(device="cpu"))
    model(torch.zeros(1, 1, device="cpu")).sum().backward()
    del model
    dist.destroy_process_group()
    sys.excepthook = excepthook


def _shut_until_forgotten(connections: Connections) -> None:
    end = time.monotonic() + CONNECT_SECONDS
    while connections.shut() and time.monotonic() < end:
        time.sleep(SHUT_AGAIN_SECONDS)


class _Step:
    """The `with` of one batch; a class, since a generator would cost each step more."""

    def __init__(self, loop: ElasticLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._synchronization = self._loop._begin_batch()
        self._synchronization.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._synchronization.__exit__(kind, error, trace)
        if error is None:
            self._loop._end_batch()
            return False
        if not isinstance(error, RuntimeError) or not self._loop._peer_lost():
            return False
        log.info("step %d is done again: %s", self._loop.steps + 1, error)
        self._loop._undo_step()
        return True


def _data_parallel(model: torch.nn.Module) -> torch.nn.Module:
    # Everybody has the same state already.
    return DistributedDataParallel(model, init_sync=False)


def _refuse(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: ElasticDataset) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import DTensor

    if not isinstance(data, ElasticDataset):
        raise TypeError(
            f"data is a {type(data).__name__}: expected an ElasticDataset, whose batches the loop "
            "hands out"
        )
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        raise ValueError(
            "ZeroRedundancyOptimizer communicates inside step(), so a lost peer can leave it half "
            "applied: use Checkpointer in your own loop instead of ElasticLoop"
        )
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            "the model is sharded, so a lost rank's part is in no survivor: use Checkpointer in "
            "your own loop instead of ElasticLoop"
        )
