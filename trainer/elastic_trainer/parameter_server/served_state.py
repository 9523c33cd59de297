"""ServedState: tables on servers, in step with an ElasticLoop's training.

Ranks tell one another a step's gradients before anybody applies it. Then each pushes all of them
under the step's number, which a bucket takes once, whoever sends it first: so a rank goes on only
when the servers have the whole step, and one that is lost leaves none of it undone. A step that
breaks before has reached no server.

Rows that are lost with a server, and those that a copy has as they were some steps ago, are none of
this step: then all go back to the newest commit, whose rows the servers wrote at its step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from elastic_trainer.checkpoint.recovery import NOTHING, Identity
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.embeddings.exchange import Update, summed
from elastic_trainer.parameter_server.server_error import ServerError
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.attachment import Attachments
from elastic_trainer.store.errors import StorageError, UnavailableError
from elastic_trainer.store.storage import Storage

if TYPE_CHECKING:
    from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
    from elastic_trainer.parameter_server.client import ServedTables

KIND = "served"
MOST_CHANGES = 8
"""Saves of what changed that follow one with all rows."""


class ServedState:
    """A SplitState of which servers have all parts.

    Args:
        tables: those of all modules.
        embeddings: the modules.
    """

    name = "elastic_trainer.parameter_server"

    def __init__(self, tables: ServedTables, embeddings: Sequence[ElasticEmbedding]) -> None:
        self._tables, self._embeddings = tables, embeddings
        self._group = ProcessGroup()
        self._identity = NOTHING
        self._pending: tuple[Identity, list[Update]] | None = None
        """A step of which this rank knows all, and that it has not applied."""
        self._newest, self._whole = NOTHING, False
        self._history: messages.History | None = None
        """Which rows the ranks whose state is the newest go on from."""
        self._files: dict[str, Any] = {}
        self._base = NOTHING
        """Identity of the save with all rows that the last one of this round goes back to."""

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return self._embeddings

    @property
    def steps(self) -> int:
        return self._identity[1]

    def follow(self, data: ElasticData) -> None:
        """Do nothing: ElasticLoop tells it at each batch's end."""

    # ---- a step

    def begin_batch(self) -> None:
        for one in self._embeddings:
            one.begin_batch()

    def end_batch(self, *, counts: bool) -> None:
        for one in self._embeddings:
            one.end_batch(counts)

    def push(self, identity: Identity) -> None:
        own = [one.push() for one in self._embeddings]
        said = self._group.gather([(one.ids, one.seen, one.gradients.numpy()) for one in own])
        updates = []
        for number, one in enumerate(self._embeddings):
            ids, seen, gradients = zip(*(parts[number] for parts in said), strict=True)
            settings = one.table.settings
            updates.append(
                summed(
                    ids,
                    seen,
                    [torch.from_numpy(part) for part in gradients],
                    settings.width,
                    settings.dtype,
                    1 / self._group.world,
                )
            )
        self._pending = identity, updates
        self._group.barrier()

    def apply(self) -> None:
        assert self._pending is not None
        identity, updates = self._pending
        self._tables.push(updates, identity[1])
        self._identity, self._pending = identity, None

    def undo(self) -> None:
        for one in self._embeddings:
            one.forget_batches()

    # ---- a round

    def meet(self, group: ProcessGroup, live: Identity) -> bool:
        self._group = group
        self._newest = max(group.gather(live))
        # None: of another state, or of one that others handed over to this rank.
        history = self._tables.goes_on_from if live == self._newest != NOTHING else None
        # Who was lost may have applied a step that nobody here has.
        stands = history is None or self._tables.stand_at(live[1])
        said = group.gather((stands, history))
        self._history = next((one for _, one in said if one is not None), None)
        stand = all(stands for stands, _ in said) and self._history is not None
        self._whole = self._newest != NOTHING and stand
        return self._whole

    def load(self, storage: Storage, saved: Mapping[str, Any]) -> None:
        """Do nothing: the servers load all parts, together."""

    def level(self, identity: Identity, version: int, storage: Storage) -> None:
        self._base = NOTHING  # who saves next may know nothing of the last one
        if identity == self._newest and self._whole:
            if self._pending is not None and self._pending[0] == identity:
                self.apply()
        else:
            self._history = self._go_back(storage if identity != NOTHING else None)
        # The same for all, so that none takes rows that were adopted meanwhile for the step's.
        self._tables.act_as(self.name, identity[1], self._history)
        self._identity, self._pending = identity, None
        self._group.barrier()

    def move_on(self) -> None:
        """Do nothing: the servers have all."""

    def hand_over(self, leaving: Sequence[bool]) -> bool:
        """Do nothing: the servers have all."""
        return True

    def loads(self, now: float) -> None:
        """Tell nothing: the servers say what they hold."""

    # ---- commits

    def save(self, storage: Storage, identity: Identity) -> None:
        files: dict[str, Any] = {}
        problem = None
        if self._group.rank == 0:
            attachments, place = Attachments(storage, KIND), None
            try:
                place = attachments.begin(identity)
                after = self._files if self._follows() else None
                base = self._base if after is not None else None
                saved = self._tables.write(os.path.join(_folder(storage), place), after)
                published = attachments.publish(place, identity, base)
                files = {**saved, "place": published.place}
                self._base = identity if base is None else base
                if published.alone:
                    self._base = NOTHING  # else a damaged file of this one could take all commits
            except (StorageError, ServerError) as error:
                self._base = NOTHING
                problem = str(error)
                if place is not None:
                    storage.abandon(place)
        files, problem = self._group.from_rank(0, (files, problem))
        if problem is not None:
            raise UnavailableError(problem)
        self._files = files

    def _follows(self) -> bool:
        """Tell whether what changed since the last save is enough."""
        return self._base != NOTHING and len(self._files.get("before", ())) < MOST_CHANGES

    def state_dict(self) -> dict[str, Any]:
        return dict(self._files)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._files = dict(state_dict)

    def _go_back(self, storage: Storage | None) -> messages.History:
        """Have the servers begin with empty tables, or with what the commit has; return which rows
        these are."""
        history, problem = None, None
        if self._group.rank == 0:
            try:
                if storage is None:
                    history = self._tables.clear()
                else:
                    folder = _folder(storage)
                    history = self._tables.load(
                        {
                            **_within(folder, self._files),
                            "before": [
                                _within(folder, one) for one in self._files.get("before", ())
                            ],
                        }
                    )
            except (StorageError, ServerError) as error:
                problem = str(error)
        history, problem = self._group.from_rank(0, (history, problem))
        if history is None:
            raise StorageError(problem)
        self._tables.begin_anew()
        return history


def _within(folder: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    return {**saved, "place": os.path.join(folder, saved["place"])}


def _folder(storage: Storage) -> str:
    if storage.remote:
        raise StorageError(
            f"{storage.location} is no directory: servers write their rows to one that all of them "
            "see, as --storage"
        )
    return str(storage.folder)
