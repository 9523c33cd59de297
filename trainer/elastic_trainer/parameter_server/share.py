"""Share: the buckets of a server among those of its job: held, given to others, and coming."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.parts import hold_as_told
from elastic_trainer.parameter_server.saves import Saves
from elastic_trainer.parameter_server.wire import unpack, unpack_entries, write_settings


class Share:
    """Args:
    holder: of what is held.
    epoch: of the rows; empty: there are none yet.
    """

    def __init__(self, holder: Holder, epoch: str = "") -> None:
        self.holder, self.epoch = holder, epoch
        self.saves = Saves(holder)
        self._given: dict[str, NDArray[np.bool_]] = {}
        """By the life that took them, buckets whose rows are kept until it has a copy of them."""
        self._coming: dict[str, tuple[str, Buckets]] = {}
        """By move: the life of the server that is giving, and buckets."""
        self._taken: set[str] = set()

    # ---- given

    def gave(self, taker: str, given: Buckets) -> None:
        """Hold these buckets no longer, which that life has taken. Their rows stay until `forget`,
        or are held again."""
        self.holder.held[given] = False
        self._given.setdefault(taker, np.zeros(BUCKETS, dtype=bool))[given] = True
        for table in self.holder.tables.values():
            table.rest(given.tolist())

    def given(self) -> dict[str, Buckets]:
        """Return buckets that were given, whose rows are still here, by the life that took them."""
        found = {life: np.flatnonzero(mask) for life, mask in self._given.items()}
        return {life: of for life, of in found.items() if len(of)}

    def forget(self, taker: str, given: Buckets, turns: NDArray[np.int64]) -> None:
        """Forget the rows of buckets that this life took, where they had come by these turns."""
        mask = self._given.get(taker)
        if mask is not None:
            self._drop(given[mask[given] & (self.holder.turns[given] == turns)])

    def hold_again(self, taker: str, given: Buckets, turn: int, number: int = 0) -> bool:
        """Hold buckets as they were when this life took them. False where they aren't here."""
        mask = self._given.get(taker)
        if mask is None or not mask[given].all() or self.holder.held[given].any():
            return False
        self._keep_no_longer(given)
        for table in self.holder.tables.values():
            table.wake(given.tolist())
        self.holder.hold(given, {}, {}, turn, number)
        return True

    # ---- coming

    def expect(self, move: str, given: Buckets, source: str) -> bool:
        """Expect these buckets. False where some are held here: then they aren't another's.

        An older move of one of them has ended with its giver, whom this refuses to take.
        """
        if self.holder.held[given].any():
            return False
        self._expect_no_longer(given)
        self._coming[move] = source, given
        self._drop(given)
        return True

    @property
    def expects_from(self) -> set[str]:
        """Return the lives of servers from which something is coming."""
        return {source for source, _ in self._coming.values()}

    def expect_nothing_from(self, lives: Collection[str]) -> None:
        """Take nothing that these servers, which are gone, were giving."""
        for move in [one for one, (source, _) in self._coming.items() if source in lives]:
            self._drop(self._coming.pop(move)[1])

    def receive(self, part: Any) -> bool:
        """Keep a ReceiveRequest's rows. False where they aren't expected. Raises ValueError."""
        _, coming = self._coming.get(part.move, ("", ()))
        if part.move not in self._coming or any(one.number not in coming for one in part.whole):
            return False
        table = self.holder.add_table(part.table)
        for one in part.whole:
            table.write_bucket(one.number, one.counts, one.parts)
        if part.ids:
            table.replace(unpack(part.ids), unpack_entries(part.entries, table.settings))
        return True

    def take(self, told: Any) -> bool:
        """Hold what has come, whole, as a TakeRequest tells. False where its move isn't known."""
        if told.move not in self._coming:
            return told.move in self._taken
        del self._coming[told.move]
        self._taken.add(told.move)
        adopted = unpack(told.adopted) if told.adopted else 0  # of a server that doesn't know yet
        hold_as_told(self.holder, told, told.turn, adopted)
        return True

    def adopt(self, copy: Holder, given: Buckets, turn: int = 0, number: int = 0) -> None:
        """Hold buckets, of which none is held here, as a copy has them.

        Args:
            number: of the adoption.
        """
        self._expect_no_longer(given)
        self._drop(given)
        for table in copy.tables.values():
            mine = self.holder.add_table(write_settings(table.settings))
            mine.copy(table, given.tolist())
            mine.step = max(mine.step, table.step)
        self.holder.hold(given, copy.applied_in(given), {}, turn, number)

    def _expect_no_longer(self, given: Buckets) -> None:
        """Forget moves of any of these buckets, whose givers' lives are over."""
        for old in [one for one, (_, of) in self._coming.items() if np.isin(of, given).any()]:
            self._drop(self._coming.pop(old)[1])

    def _drop(self, given: Buckets) -> None:
        self._keep_no_longer(given)
        self.holder.drop_rows(given)

    def _keep_no_longer(self, given: Buckets) -> None:
        for mask in self._given.values():
            mask[given] = False
        self._given = {life: mask for life, mask in self._given.items() if mask.any()}
