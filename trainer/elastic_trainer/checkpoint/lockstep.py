"""What all ranks do with their saves, together and in the background.

In a thread of each rank, over a process group of its own. Each save is one item on every rank's
queue, and each item begins with agreeing on the newest step that all ranks have saved: so all pass
over the same ones while the work is slower than the saves.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from elastic_trainer.store.slot import Label, Slot

KEPT = 4
"""Saves that are looked for in memory when their turn comes."""

log = logging.getLogger(__name__)


class Lockstep:
    """Made on all ranks at once, as it makes a process group.

    Args:
        name: of the thread, and of what is done in the log.
        work: called on all ranks with the same step's slot, which is sealed and locked against
            writing, its label and the group; whether it was done.
    """

    def __init__(self, name: str, work: Callable[[Slot, Label, dist.ProcessGroup], bool]) -> None:
        self._name, self._work = name, work
        self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        self._items: queue.Queue[tuple[Slot, Label] | None] = queue.Queue()
        self._slots: dict[int, tuple[Slot, Label]] = {}
        """By step, the newest few."""
        self._done = -1
        self._failed: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def saved(self, item: tuple[Slot, Label] | None) -> None:
        """This rank has saved to memory, or could not."""
        self._items.put(item)

    def flush(self) -> BaseException | None:
        """Wait until nothing is under way; return what ended the work for good, if anything."""
        self._items.join()
        return self._failed

    def _run(self) -> None:
        while True:
            item = self._items.get()
            try:
                if self._failed is None:
                    self._turn(item)
            except (Exception, CheckpointException) as error:  # the latter is a BaseException
                log.warning("no further %s: %r", self._name, error)
                self._failed = error
            finally:
                self._items.task_done()

    def _turn(self, item: tuple[Slot, Label] | None) -> None:
        if item is not None:
            self._slots[item[1].step] = item
            for old in sorted(self._slots)[:-KEPT]:
                del self._slots[old]
        newest = torch.tensor(max(self._slots, default=-1))
        dist.all_reduce(newest, dist.ReduceOp.MIN, group=self._group)
        step = int(newest)
        if step <= self._done:
            return
        slot, label = self._slots.get(step, (None, None))
        if slot is None or label is None:
            self._agree("it is no longer in memory")
            return
        problem = None
        with contextlib.ExitStack() as lock:
            try:
                ours = lock.enter_context(slot.locked(exclusive=False))
                if not ours or (slot.sealed() or slot.verify()) != label:
                    problem = "its slot is in use again"
            except Exception as error:  # whatever it is, the other ranks wait for a word
                problem = str(error) or repr(error)
            if self._agree(problem):
                return
            if self._work(slot, label, self._group):
                self._done = step
        dist.barrier(self._group)  # see ProcessGroup.barrier

    def _agree(self, problem: str | None) -> bool:
        """Whether any rank has a problem."""
        said = next((one for one in gather(problem, self._group) if one), None)
        if said and dist.get_rank(self._group) == 0:
            log.warning("one %s less: %s", self._name, said)
        return said is not None


def gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Every rank's value, by rank."""
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, value, group=group)
    return said
