"""A sharded state as a commit, in torch.distributed.checkpoint's format: any world can load it.

Every rank writes its own files, `__<rank>_<n>.distcp`; rank 0 also DCP's index (`.metadata`), what
isn't sharded (`extra.pt`), and last the marker with all files' digests.

From memory this happens in the background, and so does the mirroring to another node's memory.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from elastic_trainer.checkpoint.lockstep import Lockstep, gather
from elastic_trainer.checkpoint.mirror import Mirror
from elastic_trainer.checkpoint.model_state import ModelState
from elastic_trainer.checkpoint.recovery import Identity
from elastic_trainer.data.process_group import ProcessGroup
from elastic_trainer.store.folder import is_url
from elastic_trainer.store.slot import Label, Slot, SlotError
from elastic_trainer.store.storage import Commit, Storage, StorageError

EXTRA = "extra.pt"
INDEX = ".metadata"

log = logging.getLogger(__name__)


class Shards:
    """Methods are for all ranks at once.

    Args:
        told: called with a step and the round that made it, on rank 0, once it is in storage.
        mirror: another node's memory for this rank's part.
    """

    def __init__(
        self,
        storage: Storage,
        state: ModelState,
        told: Callable[[int, int], None],
        mirror: Mirror | None = None,
    ) -> None:
        self._mirror = mirror
        self._storage = storage
        self._state = state
        self._told = told
        self._stored = -1
        self._storing: Lockstep | None = None
        self._mirroring: Lockstep | None = None

    # ---- saving

    def write(self, state: dict[str, Any], *, step: int, run: int, round_: int) -> None:
        """To storage, while training waits.

        Raises:
            StorageError: on every rank, if any could not write its part.
        """
        self._write(state, step, run, round_, None)

    def saved(self, slot: Slot | None, label: Label | None) -> None:
        """This rank has saved to memory, or could not: mirror and storage follow in the background,
        neither waiting for the other."""
        if self._storing is None:
            self._storing = Lockstep("commits in storage", self._store)
            if self._mirror is not None:
                self._mirroring = Lockstep("mirrors", self._mirror.keep)
        for lockstep in (self._mirroring, self._storing):
            if lockstep is not None:
                lockstep.saved((slot, label) if slot is not None and label is not None else None)

    def settle(self) -> int:
        """Waits until nothing is under way; the newest step that this process brought to storage,
        -1 for none.

        Raises:
            StorageError: a rank was lost meanwhile.
        """
        if self._mirroring is not None:
            self._mirroring.settle()
        if self._storing is not None and (failed := self._storing.settle()) is not None:
            raise StorageError(f"a rank was lost while it saved: {failed}")
        return self._stored

    def _store(self, slot: Slot, label: Label, group: dist.ProcessGroup) -> bool:
        state, problem = None, None
        try:
            state = slot.read(self._state.meshes)
        except SlotError as error:
            problem = str(error)
        try:
            problem = next((one for one in gather(problem, group) if one), None)
            if problem is not None or state is None:
                raise StorageError(problem)
            self._write(state, label.step, label.run, label.round, group)
        except StorageError as error:
            log.warning("going on without this commit: %s", error)
            return False
        return True

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
        places = gather((written, problem), group)
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
        said = gather((records, problem), group)
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
        problem = gather(problem, group)[0]
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
