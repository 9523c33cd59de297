"""Works on the saves of all ranks together, in the background.

In a thread of each rank, over a process group of its own. Each save is one item on every rank's
queue, and each item begins with agreeing on the newest step that all ranks have saved: so all pass
over the same ones while the work is slower than the saves.

gloo can't end a wait: a rank that fails would leave the others in theirs. So it says so in the
group's store, where every rank looks while there is work. Whoever finds it there shuts the group's
connections, which ends the wait with an error, and does nothing further. The same at the process's
end: a thread that is still inside torch when Python has ended would abort the process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import queue
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from elastic_trainer.checkpoint.save import Save
from elastic_trainer.ranks.connection import Address, Connections
from elastic_trainer.ranks.gathering import gather_objects
from elastic_trainer.ranks.process_group import CONTROL_TIMEOUT
from elastic_trainer.store.slot import Label, Slot

KEPT = 4
"""Saves that are looked for in memory when their turn comes."""

log = logging.getLogger(__name__)


WATCH_SECONDS = 0.5
"""How often a rank with work looks whether another has failed."""
LEAVING_SECONDS = 1.0
"""For who lives on to say that a failure was the end of its world."""
ENDING_SECONDS = 5.0
"""For the thread to come back from a wait whose connections were shut. What else it may be in, a
silent storage, is left behind: nothing counts that is done there."""


class LockstepError(Exception):
    """The work has failed on another rank, and ends on this one."""


class Peers:
    """The ranks that do the work, and their word when it fails on one of them.

    Made on all ranks at once.

    Args:
        store: of all ranks. A key in it tells of the failure.
    """

    def __init__(self, store: Store) -> None:
        self._connections = Connections()
        group = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        self.group = cast(dist.ProcessGroup, group)
        """gloo's, used by nothing else."""
        listeners: list[set[Address]] = gather_objects(self._connections.listeners(), self.group)
        self._connections.seal(set().union(*listeners))
        self._store = store
        self._rank = dist.get_rank(self.group)
        self._key = f"elastic-lockstep/{gather_objects(uuid.uuid4().hex, self.group)[0]}/failed"
        self._changed = threading.Condition()
        self._working = self._waiting = False
        self._failure: BaseException | None = None

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank. Raises LockstepError."""
        with self.waiting():
            return gather_objects(value, self.group)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Tell that what is done within may wait for other ranks, and may be left behind: nothing
        within may bring about what counts.

        Raises:
            LockstepError: before or after it, once the work has failed on another rank.
        """
        self._set_waiting(True)
        try:
            yield
        finally:
            self._set_waiting(False)

    def _set_waiting(self, waiting: bool) -> None:
        with self._changed:
            if self._failure is not None:  # and `waiting` stays as it was
                raise LockstepError(str(self._failure)) from self._failure
            self._waiting = waiting
            self._changed.notify_all()

    def set_working(self, working: bool) -> None:
        with self._changed:
            self._working = working
            self._changed.notify_all()

    def fail(self, error: BaseException, *, tells: bool = True) -> bool:
        """End the work on all ranks; return False where it has ended before.

        Args:
            tells: False where the other ranks end it by themselves.
        """
        with self._changed:
            if self._failure is not None:
                return False
            self._failure = error
            self._changed.notify_all()
        if tells:
            with contextlib.suppress(RuntimeError):  # the store is gone, and its watchers know
                self._store.set(self._key, f"rank {self._rank}: {error!r}")
        self._connections.shut()
        return True

    def watch(self) -> None:
        """Return once the work has failed on any rank."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._working or self._failure is not None)
                self._changed.wait_for(lambda: self._failure is not None, WATCH_SECONDS)
                if self._failure is not None:
                    return
            error = self.told()
            if error is not None and self.fail(error):
                return

    def told(self) -> Exception | None:
        """Return another rank's report of its failure, or why that can't be known any more."""
        try:
            if not self._store.check([self._key]):
                return None
            return LockstepError(self._store.get(self._key).decode())
        except RuntimeError as lost:
            return lost

    def wait_until_idle(self, idle: Callable[[], bool]) -> None:
        """Return when `idle`, or soon after the work has failed and does nothing that counts."""
        with self._changed:
            self._changed.wait_for(lambda: idle() or (self._failure is not None and self._waiting))
            self._changed.wait_for(idle, ENDING_SECONDS)


class _Close:
    """The last item: the thread ends."""


class Lockstep:
    """Made on all ranks at once, as it makes a process group.

    Args:
        name: of the thread, and of what is done in the log.
        work: called on all ranks with the same step's slot, which is sealed and locked against
            writing, its label and the ranks; whether it was done.
    """

    def __init__(self, name: str, work: Callable[[Slot, Label, Peers], bool]) -> None:
        self._name, self._work = name, work
        self._peers = Peers(_get_default_store())
        self._items: queue.Queue[Save | type[_Close] | None] = queue.Queue()
        self._slots: dict[int, tuple[Slot, Label]] = {}
        """By step, the newest few."""
        self._done = -1
        self._left = threading.Event()
        self._ending = functools.partial(_end, weakref.ref(self))
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._watcher = threading.Thread(target=self._watch, name=f"{name}: watch", daemon=True)
        self._watcher.start()
        atexit.register(self._ending)

    def saved(self, save: Save | None) -> None:
        """This rank has saved to memory, or could not; its thread waits for what is under way."""
        self._items.put(save)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the work, if one has; the ranks hear of it one after another."""
        return self._peers.failure

    def close(self, reason: LockstepError) -> None:
        """Do nothing further, for `reason` where the work hasn't ended yet; wait for nothing."""
        self._peers.fail(reason)
        self._items.put(_Close)

    def leave(self) -> None:
        """Do nothing further, as the ranks' world is over on all of them; wait for nothing."""
        self._left.set()
        self._peers.fail(LockstepError("its world is over"), tells=False)
        self._items.put(_Close)

    def flush(self) -> BaseException | None:
        """Wait until nothing is under way; return what ended the work, if anything."""
        self._peers.wait_until_idle(lambda: not self._items.unfinished_tasks)
        return self._peers.failure

    def end(self) -> None:
        """The process ends: so does what is under way, on all ranks."""
        if self._items.unfinished_tasks:
            self._peers.fail(LockstepError("the process has ended"))
            self.flush()
        if self._peers.failure is not None:
            self._watcher.join(ENDING_SECONDS)

    def _run(self) -> None:
        while self._take_next():  # where it waits for one it holds nothing of the last
            pass
        atexit.unregister(self._ending)

    def _take_next(self) -> bool:
        """Wait for an item, and work on it; return False where it was the last."""
        item = self._items.get()
        if isinstance(item, type):
            self._items.task_done()
            self._peers.set_working(False)  # who waits for its end looks again
            return False
        self._peers.set_working(True)
        try:
            if self._peers.failure is None:
                self._turn(item)
        except BaseException as error:  # of this thread alone, and the other ranks wait
            reason = error
            if isinstance(error, RuntimeError):  # a wait breaks when its peer has failed
                reason = self._peers.told() or error
            self._peers.fail(reason)
        finally:
            self._items.task_done()
            self._peers.set_working(False)
        return True

    def _watch(self) -> None:
        self._peers.watch()
        if not self._left.wait(LEAVING_SECONDS):
            log.warning("no further %s in the background: %r", self._name, self._peers.failure)

    def _turn(self, save: Save | None) -> None:
        if save is not None and save.close():
            self._slots[save.label.step] = save.slot, save.label
            for old in sorted(self._slots)[:-KEPT]:
                del self._slots[old]
        self._work_on_newest()
        with self._peers.waiting():
            dist.barrier(self._peers.group)  # see ProcessGroup.barrier

    def _work_on_newest(self) -> None:
        step = min(self._peers.gather(max(self._slots, default=-1)))
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
            if self._work(slot, label, self._peers):
                self._done = step

    def _agree(self, problem: str | None) -> bool:
        """Return whether any rank has a problem."""
        said = next((one for one in self._peers.gather(problem) if one), None)
        if said and dist.get_rank(self._peers.group) == 0:
            log.warning("one %s less: %s", self._name, said)
        return said is not None


def _end(lockstep: weakref.ref[Lockstep]) -> None:
    if (one := lockstep()) is not None:
        one.end()
