"""ElasticLoop: model, optimizer, data and commits in one loop that survives its world's changes.

    loop = ElasticLoop("commits", model=net, optimizer=optimizer, data=data)
    for images, labels in loop:
        with loop.step():
            (loop.weight * cross_entropy(loop.model(images), labels)).backward()

A round ends by a fence (somebody joins or leaves) or because a peer is lost. The process lives on:

    round over ─► collectives broken ─► out of the group ─► next place ─► new group ─► level

Level: the rank with the newest state, by (run, step), gives it to those that have another. A state
is named by the run that made its last step and that step: steps of equal number in two runs differ
in bits. Where nobody has a live state, or storage holds a newer one, it comes from the last commit.

A step is applied whole or not at all: from the last collective (in `backward`) to the end of
`optimizer.step()` there is none, so a round that breaks leaves every survivor between two steps.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from trainer.agent.link import Order, Place, WorkerLink
from trainer.checkpoint.checkpointer import Checkpointer, Stateful
from trainer.data.dataset import ElasticDataset
from trainer.data.process_group import ProcessGroup
from trainer.loop.connection import Connections
from trainer.loop.transfer import receive, send

CONNECT_SECONDS = 10.0
"""For all of a round's ranks to find one another."""
PATIENCE_SECONDS = 3.0
"""How long an error waits for the word that a peer was its cause."""
SHUT_AGAIN_SECONDS = 0.01
"""While the main thread is on its way out of a round, it may still be opening connections."""

log = logging.getLogger(__name__)

_NOTHING = (0, 0)
"""The identity of a state that nobody trained."""


class ElasticLoop:
    """Iterates over `data`'s batches of this rank; `with loop.step():` around each one's training.

    It connects the processes (don't call `init_process_group`), restores the newest state, wraps
    the model for each round, zeroes gradients before and steps the optimizer after the `with`'s
    body, and commits. Under another launcher, or alone, it does the same without rounds.

    A body may be run again for the same batch if its round breaks: what it keeps for itself
    (a running mean of the loss) should be kept after the `with`.

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

    Raises:
        StorageError, ValueError: as Checkpointer, at the first iteration.
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
    ) -> None:
        _refuse(model, optimizer)
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
        self._store: TCPStore | None = None
        self._carried = False
        """The place is not the one that this process was started for."""
        self._identity = _NOTHING
        self._stepped = self._broken = False
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
        )

    @property
    def weight(self) -> float:
        """Factor for this batch's mean loss, see ElasticDataset."""
        return self.data.weight

    @property
    def steps(self) -> int:
        """Steps applied since the very beginning of training."""
        return self.data.steps

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._enter()
            for batch in self.data:
                self._stepped = False
                yield batch
                if not self._stepped:
                    raise RuntimeError("a batch was not trained on: put it in `with loop.step():`")
                if self._broken or self._leave_round():
                    break
            else:
                if self._attempt(self.checkpointer.finish):
                    self._disconnect()
                    return
            self._disconnect()

    def step(self) -> _Step:
        """Around forward and backward; applies the step at its end, unless the round broke."""
        return _Step(self)

    # ---- one step

    def _begin_step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self._reseed:
            torch.manual_seed(hash((self.data.seed, self.data.steps, self.rank)))
        # An aborted forward has moved them (batch norm's running mean); the step is done again.
        self._buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]

    def _end_step(self) -> None:
        self.optimizer.step()
        self.data.applied()
        self._identity = (self.checkpointer.run, self.data.steps)
        self._stepped = True

    def _undo_step(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        self._stepped = self._broken = True

    def _leave_round(self) -> bool:
        """After a step: whether the round ends here; commits where one is due."""
        order = self.link.boundary(self.data.steps, self.data.consumed)
        if order is Order.GO:
            self.checkpointer.commit_if_due()
            return False
        if order is Order.OVER:
            return True
        if self.link.commit_wanted and not self._attempt(self.checkpointer.commit_on_all_ranks):
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
            if not self.link.lost(PATIENCE_SECONDS):
                raise
            return False
        return True

    # ---- rounds

    def _enter(self) -> None:
        """Returns in a round, connected and with the common state."""
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
            dist.init_process_group(
                "gloo", store=self._store, rank=place.rank, world_size=place.world
            )
            connections.seal()
        elif dist.is_torchelastic_launched() and not dist.is_initialized():
            dist.init_process_group("gloo")
        group = ProcessGroup.current()
        self.rank, self.world = group.rank, group.world
        self.data.regroup(group)

    def _next_place(self) -> Place | None:
        """None where there are no rounds."""
        if not self.link.agent:
            return None
        if self.link.round and not self._broken:
            names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
            rank, world, port = (int(os.environ[name]) for name in names)
            return Place(self.link.round, rank, world, os.environ["MASTER_ADDR"], port)
        self._carried = True
        return self.link.next_place()

    def _disconnect(self) -> None:
        """Out of the round; the state stays as it is."""
        self._broken = True
        self.model = self.module
        if self._connections is not None:
            self._connections.forget()
        if self.link.agent and dist.is_initialized():
            dist.destroy_process_group()
        # A group is named by how many were made, and ranks find one another by the name; one whose
        # making failed was counted, but can't be destroyed.
        distributed_c10d._world.group_count = 0
        self._store = None

    def _level(self) -> None:
        """Every rank gets the newest state; the run begins."""
        mine = torch.tensor(self._identity)
        known = [torch.empty_like(mine) for _ in range(self.world)]
        if self.world > 1:
            dist.all_gather(known, mine)
        else:
            known = [mine]
        identities = [(int(run), int(step)) for run, step in (tensor.tolist() for tensor in known)]
        newest = max(identities)
        source = identities.index(newest)
        decision = self._decide(newest) if self.rank == source else None
        run = self.data.group.from_rank(source, decision)
        if run is None:
            self.checkpointer.restore()
            if not self.checkpointer.parent:
                self._share(0, range(1, self.world))
        else:
            self._share(source, [r for r, found in enumerate(identities) if found != newest])
            self.checkpointer.begin(run=run, parent=newest[0])
        self._identity = (self.checkpointer.parent, self.data.steps)
        self.model = self._wrap(self.module) if self.world > 1 else self.module

    def _decide(self, newest: tuple[int, int]) -> int | None:
        """By the source: the run's number; None if storage knows better than anybody alive."""
        if newest == _NOTHING:
            return None
        storage = self.checkpointer.storage
        if storage.newest_identity() > newest:
            commit = storage.newest()  # verified: a damaged one is no better
            if commit is not None and (commit.run, commit.step) > newest:
                return None
        return 1 + max(newest[0], self.data.last_run())

    def _share(self, source: int, ranks: Sequence[int]) -> None:
        if self.rank == source:
            if ranks:
                send(self.checkpointer.state(), ranks)
        elif self.rank in ranks:
            self.checkpointer.load_state(receive(source))

    def _break(self) -> None:
        """In the link's thread: the round is over, whatever the main thread waits for."""
        connections = self._connections
        if connections is not None and connections.shut():
            threading.Thread(
                target=_shut_until_forgotten, args=(connections,), name="break", daemon=True
            ).start()


def _shut_until_forgotten(connections: Connections) -> None:
    end = time.monotonic() + CONNECT_SECONDS
    while connections.shut() and time.monotonic() < end:
        time.sleep(SHUT_AGAIN_SECONDS)


class _Step:
    """The `with` of one step; a class, since a generator would cost each step more."""

    def __init__(self, loop: ElasticLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._loop._begin_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self._loop._end_step()
            return False
        if not isinstance(error, RuntimeError) or not self._loop.link.lost(PATIENCE_SECONDS):
            return False
        log.info("step %d is done again: %s", self._loop.steps + 1, error)
        self._loop._undo_step()
        return True


def _data_parallel(model: torch.nn.Module) -> torch.nn.Module:
    # Everybody has the same state already.
    return DistributedDataParallel(model, init_sync=False)


def _refuse(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import DTensor

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
