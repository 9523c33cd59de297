"""A sharded state as a commit, in torch.distributed.checkpoint's format: any world can load it.

Every rank writes its own files, `__<rank>_<n>.distcp`; rank 0 also DCP's index (`.metadata`), what
isn't sharded (`extra.pt`), and last the marker with all files' digests.

From memory this happens in the background, and so does the mirroring to another node's memory.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from elastic_trainer.checkpoint.dcp_files import AnsweringFileSystem
from elastic_trainer.checkpoint.dcp_reader import (
    PlainPlanner,
    read_index,
    reader,
    stated_parameters,
)
from elastic_trainer.checkpoint.lockstep import Peers
from elastic_trainer.checkpoint.mirror import Mirror
from elastic_trainer.checkpoint.model_state import ModelState
from elastic_trainer.checkpoint.recovery import Identity
from elastic_trainer.checkpoint.renewal import BackgroundWork
from elastic_trainer.checkpoint.save import Save
from elastic_trainer.checkpoint.sharded_extra import join, take_apart
from elastic_trainer.checkpoint.sharded_optimizer import even_out
from elastic_trainer.ranks.process_group import ProcessGroup, control_group
from elastic_trainer.retry import describe
from elastic_trainer.store.answer import SilenceError
from elastic_trainer.store.commit import Commit
from elastic_trainer.store.errors import (
    SilentError,
    StorageError,
    SupersededError,
    UnavailableError,
)
from elastic_trainer.store.folder import FileRecord, is_url
from elastic_trainer.store.replica import await_devices
from elastic_trainer.store.slot import Label, Slot, digest_of_location
from elastic_trainer.store.storage import Storage

EXTRA = "extra.pt"
INDEX = ".metadata"

log = logging.getLogger(__name__)


class _AgainError(Exception):
    """All ranks are to try once more."""


class _Told:
    """An error of this rank in a phase, to be told to the others."""

    error: StorageError | None = None


@contextlib.contextmanager
def _told(what: str) -> Iterator[_Told]:
    """Hold any error back, as the other ranks wait for a word at the end of the phase."""
    told = _Told()
    try:
        yield told
    except StorageError as error:
        told.error = error
    except CheckpointException as error:  # a BaseException
        failures = [(rank, one) for rank, (one, _) in error.failures.items()]
        reasons = "; ".join(f"rank {rank}: {describe(one)}" for rank, one in failures)
        silent = any(isinstance(one, SilenceError) for _, one in failures)
        told.error = (SilentError if silent else UnavailableError)(f"{what}: {reasons}")
    except OSError as error:
        told.error = UnavailableError(f"{what}: {describe(error)}")
    except Exception as error:
        told.error = StorageError(f"{what}: {error!r}")


def raise_together(error: StorageError | None, ranks: Peers | ProcessGroup) -> None:
    """On all ranks: raise the gravest of their errors on every one of them."""
    errors = [one for one in ranks.gather(error) if one is not None]
    for kind in (SupersededError, UnavailableError, StorageError):
        for one in errors:
            if isinstance(one, kind):
                raise one


class Shards:
    """Methods are for all ranks at once.

    Args:
        told: called with a step, the round that made it and the digest of the storage's location,
            on rank 0, once it is there.
        mirror: another node's memory for this rank's part.
    """

    def __init__(
        self,
        storage: Storage,
        state: ModelState,
        told: Callable[[int, int, str, int], None],
        mirror: Mirror | None = None,
    ) -> None:
        self._mirror = mirror
        self._storage = storage
        self._state = state
        self._told = told
        self._stored = -1
        self.superseded: SupersededError | None = None
        """Another process has claimed the storage, as the background's thread has found."""
        self._storing: BackgroundWork | None = None
        self._mirroring: BackgroundWork | None = None

    # ---- saving

    def write(self, state: dict[str, Any], *, step: int, run: int, round_: int) -> None:
        """Write a commit to storage while training waits, again while the storage can't.

        Raises:
            StorageError: on every rank, if any could not write its part.
        """
        self._try_together(
            f"step {step} can't be committed",
            lambda: self._write(state, step, run, round_, None),
        )

    def saved(self, save: Save | None) -> None:
        """This rank has saved to memory, or could not: mirror and storage follow in the background,
        neither waiting for the other."""
        self._begin()
        for background in (self._mirroring, self._storing):
            if background is not None:
                background.saved(save)

    def mirror(self, save: Save | None) -> None:
        """Have this rank's part of a state that was restored mirrored in the background; nothing
        where it has none in memory."""
        self._begin()
        if self._mirroring is not None:
            self._mirroring.saved(save)

    def _begin(self) -> None:
        if self._storing is None:
            self._storing = BackgroundWork("commits in storage", self._store)
            if self._mirror is not None:
                self._mirroring = BackgroundWork("mirrors", self._mirror.keep)

    def await_mirrors(self) -> None:
        """Wait until no mirror is under way, whose parts are spared meanwhile."""
        if self._mirroring is not None:
            self._mirroring.flush()

    def leave(self) -> None:
        """The ranks' world is over, on all of them: nothing further follows what was saved."""
        for background in (self._mirroring, self._storing):
            if background is not None:
                background.leave()

    def outlives(self, training: str, identity: Identity, stays: Sequence[bool]) -> bool:
        """Bring a state that is mirrored to where each part is on two nodes that stay; return
        whether it is.

        Args:
            stays: by rank, whether what is in its node's memory will be there.
        """
        return self._mirror is not None and self._mirror.spread(training, identity, stays)

    def is_mirrored(self, identity: Identity) -> bool:
        """Wait until no mirror is under way; return whether this rank's part of a state is in
        another node's memory, too."""
        if self._mirror is None:
            return False
        self.await_mirrors()
        return self._mirror.kept == identity

    def flush(self) -> int:
        """Wait until nothing is under way; return the newest step that this process brought to
        storage, -1 for none.

        Raises:
            SupersededError: another process has claimed the storage.
        """
        for background in (self._mirroring, self._storing):
            if background is not None:
                background.flush()
        if self.superseded is not None:
            raise self.superseded
        return self._stored

    def _store(self, slot: Slot, label: Label, peers: Peers) -> bool:
        state, problem = None, None
        try:
            state = slot.read(self._state.meshes)
        except Exception as error:  # whatever it is, the others wait for a word
            problem = StorageError(f"step {label.step} can't be read from memory: {error}")
        try:
            raise_together(problem, peers)
            assert state is not None
            self._write(state, label.step, label.run, label.round, peers)
        except SupersededError as error:
            self.superseded = error
            return False
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
        peers: Peers | None,
    ) -> None:
        """Raises one of StorageError's kinds, the same on every rank; LockstepError if the work of
        `peers` has failed elsewhere."""
        ranks = peers or ProcessGroup.current()
        rank = dist.get_rank()
        rest, shards = take_apart(state["extra"])
        parts = {"model": state["model"], "optimizer": even_out(state, ranks.gather)}
        written: str | None = None
        problem: StorageError | None = None
        if rank == 0:
            with _told(f"step {step} can't be committed") as told:
                written = self._storage.begin(step)
            problem = told.error
        raise_together(problem, ranks)
        written = ranks.gather(written)[0]
        assert written is not None
        records: dict[str, FileRecord] = {}
        size = 0
        with _told(f"step {step} can't be committed") as told:
            with peers.waiting() if peers is not None else contextlib.nullcontext():
                save(
                    {**parts, "extra": shards} if shards else parts,
                    storage_writer=self._writer(written),
                    process_group=peers.group if peers is not None else control_group(),
                )
            if rank == 0:
                extra = {"extra": rest, "rng": state["rng"]}
                await_devices(extra)
                records[EXTRA] = self._storage.write_file(
                    f"{written}/{EXTRA}", lambda file: torch.save(extra, cast(Any, file))
                )
            for name in self._storage.names(written):
                if name.startswith(f"__{rank}_") or (rank == 0 and name == INDEX):
                    records[name] = self._storage.record(written, name)
        said = ranks.gather((records, told.error))
        if rank == 0:
            if any(error for _, error in said):
                self._storage.abandon(written)
            else:
                files = {name: found for part, _ in said for name, found in part.items()}
                size = sum(found.size for found in files.values())
                with _told(f"step {step} can't be committed") as told:
                    self._storage.finish(
                        written,
                        step=step,
                        run=run,
                        cursor=state["cursor"],
                        files=files,
                        round_=round_,
                    )
        raise_together(told.error, ranks)
        self._stored = step
        if rank == 0:
            self._told(step, round_, digest_of_location(self._storage.location), size)

    # ---- loading

    def load(self, identity: Identity, group: ProcessGroup) -> None:
        """Load from storage, whatever world wrote it, again while the storage can't be read.

        Raises:
            DamagedError: on every rank, where the commit isn't what was written.
            UnavailableError: on every rank, where it can't be read.
            MismatchError: it is another model's.
        """
        commit: Commit | None = None
        with _told(f"step {identity[1]} can't be read") as told:
            commit = self._storage.find(identity)
            if INDEX not in commit.files:
                raise StorageError(
                    f"{self._storage.path(commit)} is of a model that wasn't sharded"
                )
            for name in sorted(commit.files)[group.rank :: group.world]:  # each verifies its share
                self._storage.verify(commit, name)
        raise_together(told.error, ProcessGroup.current())
        assert commit is not None
        found = commit
        self._try_together(f"step {identity[1]} can't be read", lambda: self._load(found, group))

    def _load(self, commit: Commit, group: ProcessGroup) -> None:
        metadata, rest = None, {}
        with _told(f"step {commit.step} can't be read") as told:
            metadata = read_index(bytes(self._storage.load(commit, INDEX)))
            rest = torch.load(cast(Any, self._storage.load(commit, EXTRA)), weights_only=True)
        raise_together(told.error, ProcessGroup.current())
        assert metadata is not None
        index = metadata.state_dict_metadata
        self._state.compare_model(
            {
                name.removeprefix("model."): (tuple(found.size), found.properties.dtype)
                for name, found in index.items()
                if name.startswith("model.") and isinstance(found, TensorStorageMetadata)
            }
        )
        targets = self._state.extra_targets(
            rest["extra"],
            {
                name.removeprefix("extra."): (tuple(found.size), found.properties.dtype)
                for name, found in index.items()
                if name.startswith("extra.") and isinstance(found, TensorStorageMetadata)
            },
        )
        wanted = self._state.targets(names=stated_parameters(metadata))
        if targets:
            wanted["extra"] = targets
        with _told(f"step {commit.step} can't be read") as told:
            load(
                wanted,
                storage_reader=reader(
                    self._storage.place(commit.place), metadata, self._storage.calls
                ),
                planner=PlainPlanner(),
                process_group=control_group(),
            )
        raise_together(told.error, ProcessGroup.current())
        extra = join(rest["extra"], targets)
        self._state.give({**wanted, **rest, "extra": extra, "cursor": commit.cursor})
        if group.rank == 0:
            self._state.give_generators(rest)
            place = digest_of_location(self._storage.location)
            self._told(commit.step, commit.round, place, commit.size)

    def _try_together(self, what: str, operation: Callable[[], None]) -> None:
        """Try again while all ranks find the storage unavailable; rank 0's clock says how long."""
        policy = self._storage.policy
        deadline = time.monotonic() + policy.seconds

        def attempt() -> None:
            try:
                operation()
            except UnavailableError as error:
                if ProcessGroup.current().from_rank(0, time.monotonic() < deadline):
                    raise _AgainError(str(error)) from error
                raise

        endless = replace(policy, seconds=math.inf)
        endless.call(attempt, transient=lambda error: isinstance(error, _AgainError), what=what)

    def _writer(self, name: str) -> Any:
        place = self._storage.place(name)
        if not is_url(place):
            writer = FileSystemWriter(place, sync_files=False)  # its files do so themselves
            writer.fs = AnsweringFileSystem(self._storage.calls)
            return writer
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecWriter

        return FsspecWriter(place)
