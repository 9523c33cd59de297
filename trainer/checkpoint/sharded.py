"""A sharded state as a commit, in torch.distributed.checkpoint's format: any world can load it.

Every rank writes its own files, `__<rank>_<n>.distcp`; rank 0 also DCP's index (`.metadata`), what
isn't sharded (`extra.pt`), and last the marker with all files' digests.

From memory this happens in a thread, over a process group of its own. Each save is one item on
every rank's queue, and each item begins with agreeing on the newest step that all ranks have saved:
so all pass over the same ones while storage is slow.
"""

from __future__ import annotations

import io
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.checkpoint.folder import is_url
from trainer.checkpoint.level import Identity
from trainer.checkpoint.model_state import ModelState
from trainer.checkpoint.slot import Label, Slot, SlotError
from trainer.checkpoint.storage import Commit, Storage, StorageError
from trainer.data.process_group import ProcessGroup

EXTRA = "extra.pt"
INDEX = ".metadata"

log = logging.getLogger(__name__)


class Shards:
    """Methods are for all ranks at once.

    Args:
        told: called with a step and the round that made it, on rank 0, once it is in storage.
    """

    def __init__(
        self, storage: Storage, state: ModelState, told: Callable[[int, int], None]
    ) -> None:
        self._storage = storage
        self._state = state
        self._told = told
        self._items: queue.Queue[tuple[Slot, Label] | None] = queue.Queue()
        self._slots: dict[int, tuple[Slot, Label]] = {}
        """By step, the newest few."""
        self._stored = -1
        self._group: dist.ProcessGroup | None = None
        self._failed: BaseException | None = None

    # ---- saving

    def write(self, state: dict[str, Any], *, step: int, run: int, round_: int) -> None:
        """To storage, while training waits.

        Raises:
            StorageError: on every rank, if any could not write its part.
        """
        self._write(state, step, run, round_, None)

    def saved(self, slot: Slot | None, label: Label | None) -> None:
        """This rank has saved to memory, or could not: storage follows in the background."""
        if self._group is None:
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
            threading.Thread(target=self._run, name="shards", daemon=True).start()
        self._items.put((slot, label) if slot is not None and label is not None else None)

    def settle(self) -> int:
        """Waits until nothing is under way; the newest step that this process brought to storage,
        -1 for none."""
        self._items.join()
        if self._failed is not None:
            raise StorageError(f"a rank was lost while it saved: {self._failed}")
        return self._stored

    def _run(self) -> None:
        while True:
            item = self._items.get()
            try:
                if self._failed is None:
                    self._persist(item)
            except (Exception, CheckpointException) as error:  # the latter is a BaseException
                log.warning("sharded commits end here: %r", error)
                self._failed = error
            finally:
                self._items.task_done()

    def _persist(self, item: tuple[Slot, Label] | None) -> None:
        if item is not None:
            self._slots[item[1].step] = item
            for old in sorted(self._slots)[:-4]:
                del self._slots[old]
        newest = torch.tensor(max(self._slots, default=-1))
        dist.all_reduce(newest, dist.ReduceOp.MIN, group=self._group)
        step = int(newest)
        if step <= self._stored:
            return
        slot, label = self._slots.get(step, (None, None))
        if slot is None or label is None:
            self._agree("it is no longer in memory")
            return
        with slot.locked(exclusive=False) as ours:
            state, problem = None, None
            try:
                if ours and (slot.sealed() or slot.seal()) == label:
                    state = slot.read(self._state.meshes)
                else:
                    problem = "its slot is in use again"
            except SlotError as error:
                problem = str(error)
            if self._agree(problem) or state is None:
                return
            try:
                self._write(state, step, label.run, label.round, self._group)
            except StorageError as error:
                log.warning("going on without this commit: %s", error)
        dist.barrier(self._group)  # see ProcessGroup.barrier

    def _agree(self, problem: str | None) -> str | None:
        """Any rank's problem."""
        said = next((one for one in _gather(problem, self._group) if one), None)
        if said and dist.get_rank(self._group) == 0:
            log.warning("going on without a commit: %s", said)
        return said

    def _write(
        self,
        state: dict[str, Any],
        step: int,
        run: int,
        round_: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        rank = dist.get_rank(group)
        written = problem = None
        if rank == 0:
            try:
                written = self._storage.begin(step)
            except StorageError as error:
                problem = str(error)
        places = _gather((written, problem), group)
        written, problem = places[0]
        if written is None:
            raise StorageError(problem)
        records = {}
        try:
            save(
                {"model": state["model"], "optimizer": state["optimizer"]},
                storage_writer=self._writer(written),
                process_group=group,
            )
            if rank == 0:
                extra = {"extra": state["extra"], "rng": state["rng"]}
                records[EXTRA] = self._storage.write_file(
                    f"{written}/{EXTRA}", lambda file: torch.save(extra, cast(Any, file))
                )
            for name in self._storage.names(written):
                if name.startswith(f"__{rank}_") or (rank == 0 and name == INDEX):
                    records[name] = self._storage.record(written, name)
        except (OSError, CheckpointException) as error:
            problem = str(error)
        said = _gather((records, problem), group)
        problem = next((one for _, one in said if one), None)
        if problem is None and rank == 0:
            files = {name: found for part, _ in said for name, found in part.items()}
            try:
                self._storage.finish(
                    written,
                    step=step,
                    run=run,
                    cursor=state["cursor"],
                    files=files,
                    round_=round_,
                )
            except StorageError as error:
                problem = str(error)
        problem = _gather(problem, group)[0]
        if problem is not None:
            raise StorageError(f"step {step} can't be committed: {problem}")
        self._stored = step
        if rank == 0:
            self._told(step, round_)

    # ---- loading

    def load(self, identity: Identity, group: ProcessGroup) -> None:
        """From storage, whatever world wrote it.

        Raises:
            StorageError: on every rank, where the commit is gone or damaged.
            MismatchError: it is another model's.
        """
        commit, problem = None, None
        try:
            commit = self._find(identity)
            for name in sorted(commit.files)[group.rank :: group.world]:  # each verifies its share
                self._storage.verify(commit, name)
        except StorageError as error:
            problem = str(error)
        problems = [one for one in group.gather(problem) if one]
        if problems or commit is None:
            raise StorageError("; ".join(problems))
        reader = self._reader(f"step-{commit.step}")
        index = reader.read_metadata().state_dict_metadata
        self._state.compare_model(
            {
                name.removeprefix("model."): (tuple(found.size), found.properties.dtype)
                for name, found in index.items()
                if name.startswith("model.") and isinstance(found, TensorStorageMetadata)
            }
        )
        state = self._state.take()
        wanted = {"model": state["model"], "optimizer": state["optimizer"]}
        try:
            load(wanted, storage_reader=reader)
        except CheckpointException as error:
            raise StorageError(f"step {commit.step} can't be read: {error}") from None
        rest = torch.load(io.BytesIO(self._storage.read(commit, EXTRA)), weights_only=True)
        self._state.give({**wanted, **rest, "cursor": commit.cursor})
        if group.rank == 0:
            self._state.give_generators(rest)
            self._told(commit.step, commit.round)

    def _find(self, identity: Identity) -> Commit:
        for commit in self._storage.commits():
            if commit.identity == identity:
                if INDEX not in commit.files:
                    raise StorageError(
                        f"{self._storage.path(commit.step)} is of a model that wasn't sharded"
                    )
                return commit
        raise StorageError(f"{self._storage.location} has no commit of step {identity[1]} any more")

    def _writer(self, name: str) -> Any:
        place = self._storage.place(name)
        if not is_url(place):
            return FileSystemWriter(place)
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecWriter

        return FsspecWriter(place)

    def _reader(self, name: str) -> Any:
        place = self._storage.place(name)
        if not is_url(place):
            return FileSystemReader(place)
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader

        return FsspecReader(place)


def _gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, value, group=group)
    return said
