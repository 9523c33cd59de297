"""Saves: the rows of a holder that changed since an earlier save."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.changed_ids import distinct
from elastic_trainer.embeddings.hashing import BUCKETS, Ids
from elastic_trainer.parameter_server.changes import Changes
from elastic_trainer.parameter_server.holder import EVERY_BUCKET, NO_TURN, Buckets, Holder


@dataclass(frozen=True)
class Since:
    """Changes of rows since a save."""

    covered: NDArray[np.bool_]
    """Buckets that were held all the time, whose changes are known."""
    changed: dict[str, Ids]
    """By table."""


@dataclass
class _Save:
    changes: Changes
    turns: NDArray[np.int64]
    """By which each bucket had come that it has."""
    changed: dict[str, Ids] = field(default_factory=dict)


class Saves:
    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._known: dict[str, _Save] = {}

    def begin(self, save: str, after: str, held: Buckets) -> Since:
        """Return what changed since an earlier save, and remember this one; of saves but these two
        nothing is known any more.

        Args:
            held: what this save has.
        """
        before = self._since(self._known.get(after))
        for name in set(self._known) - {after}:
            self._known.pop(name).changes.stop()
        if save and save != after:
            turns = np.full(BUCKETS, NO_TURN)
            turns[held] = self._holder.turns[held]
            self._known[save] = _Save(Changes(self._holder, EVERY_BUCKET), turns)
        return before

    def _since(self, save: _Save | None) -> Since:
        if save is None:
            return Since(np.zeros(BUCKETS, dtype=bool), {})
        # The save that this is for may never come to be: then the next one has them, too.
        for table, ids in save.changes.take().items():
            known = save.changed.get(table)
            save.changed[table] = ids if known is None else distinct(np.concatenate([known, ids]))
        # What went and came back has come by a later turn.
        return Since(self._holder.held & (self._holder.turns == save.turns), save.changed)
