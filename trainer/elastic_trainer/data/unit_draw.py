"""UnitDraw: takes one rank's samples of a step from the units that it has open."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from elastic_trainer.data.step_budget import StepBudget
from elastic_trainer.data.stream_cursor import OpenUnit, Progress
from elastic_trainer.data.unit_reader import UnitReader


class UnitDraw:
    """Draws what a rank takes in one step, by the cursor alone: never by what is read already.

    Args:
        budget: how much to take.
        reader: of an open unit, by its number.
        prepare: makes a sample of a unit's shard, index and what was read.
        interleave: units that are drawn from by turns, by chance.
        seed: of these turns.
    """

    def __init__(
        self,
        budget: StepBudget,
        reader: Callable[[int], UnitReader],
        prepare: Callable[[str, int, Any], Any],
        *,
        interleave: int,
        seed: str,
    ) -> None:
        self._budget = budget
        self._reader = reader
        self._prepare = prepare
        self._interleave = interleave
        self._seed = seed
        self.progress: tuple[Progress, ...] = ()
        """The progress in the units given last."""
        self.pieces = 0
        """Samples, and parts of samples, taken in this step."""
        self.taken: dict[str, list[int]] = {}
        """Indexes, by shard, of the samples of which nothing is left."""
        self.first: int | None = None
        """The unit that the first sample came from."""
        self.live = False
        """True if one of the units given last has another sample."""

    @property
    def samples(self) -> int:
        return sum(map(len, self.taken.values()))

    def take(self, units: Sequence[OpenUnit]) -> None:
        """Take from these units until the budget is full or they have ended."""
        readings = [_Reading(unit, self._reader(unit.number)) for unit in units]
        for reading in readings[: self._interleave + 1]:
            reading.reader.prepare(reading.taken)
        while active := self._active(readings):
            if self._budget.full or not self._take_from(self._choose(active)):
                break
        self.live = bool(active)
        self.progress = tuple(
            Progress(one.number, one.taken, one.part, one.ended) for one in readings
        )

    def _active(self, readings: Sequence[_Reading]) -> list[_Reading]:
        found: list[_Reading] = []
        for reading in readings:
            if len(found) == self._interleave:
                break
            if not reading.ended and reading.reader.sample(reading.taken) is None:
                reading.ended = True
            if not reading.ended:
                found.append(reading)
        return found

    def _choose(self, active: Sequence[_Reading]) -> _Reading:
        begun = next((one for one in active if one.part), None)
        if begun is not None or len(active) == 1:
            return begun or active[0]
        text = f"{self._seed}/{self.pieces}".encode()
        chance = hashlib.blake2b(text, digest_size=8).digest()
        return active[int.from_bytes(chance, "little") % len(active)]

    def _take_from(self, reading: _Reading) -> bool:
        """Return whether there was room for the unit's next sample, or for a part of it."""
        found = reading.reader.sample(reading.taken)
        assert found is not None
        index, raw = found
        shard = reading.reader.unit.shard
        try:
            part = self._budget.offer(self._prepare(shard, index, raw), reading.part)
        except ValueError as error:
            raise ValueError(f"sample {index} of shard {shard!r}: {error}") from error
        if part is None:
            return False
        self.pieces += 1
        if self.first is None:
            self.first = reading.number
        reading.part = part
        if not part:
            reading.taken += 1
            self.taken.setdefault(shard, []).append(index)
        return True


class _Reading:
    """A unit, as far as it is read in this step."""

    def __init__(self, unit: OpenUnit, reader: UnitReader) -> None:
        self.number = unit.number
        self.taken = unit.taken
        self.part = unit.part
        self.ended = False
        self.reader = reader
