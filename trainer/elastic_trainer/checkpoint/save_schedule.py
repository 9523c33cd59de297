"""When to save: the steps at which all ranks do, which their clocks alone would not agree on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from elastic_trainer.ranks.process_group import ProcessGroup

SHORTEST = timedelta(seconds=1)
SHARE = 0.01
"""Share of the time that saving may take where no interval is given."""


class SaveSchedule:
    """Decides at which steps of a run to save, alike on all ranks. It is told of saves, and makes
    none.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.save_time = timedelta(0)
        """How long the last save held training up."""
        self._clock = clock
        self._began = self._saved_at = clock()
        self.first = 0
        """The step at which this run began."""
        self._next = 0
        """The step at which rank 0 is asked again whether to save."""

    def begin(self, step: int) -> None:
        """Know that a run begins here, on all ranks."""
        self.first = self._next = step
        self._began = self._saved_at = self._clock()

    def saved(self, began: float, ended: float) -> None:
        """Know of a save, or of one that failed, by the clock."""
        self._saved_at = ended
        self.save_time = timedelta(seconds=ended - began)

    def is_due(
        self, step: int, every: int | timedelta | None, last: int, group: ProcessGroup
    ) -> bool:
        """Return whether to save this step; on all ranks, the same.

        Args:
            every: as Checkpointer's.
            last: the step from which on an `every` in steps counts, if the run began before.
        """
        if isinstance(every, int):
            return step - max(self.first, last) >= every
        if step < self._next:
            return False
        due, self._next = group.from_rank(
            0, self._decide(step, every, group.world) if group.rank == 0 else (False, 0)
        )
        return due

    def _decide(self, step: int, every: timedelta | None, world: int) -> tuple[bool, int]:
        """By rank 0: whether to save now, and the step at which to ask again.

        Ranks' clocks differ, hence one decides for all; they hear it at a step all make, and as
        seldom as the speed so far allows.
        """
        interval = every or max(SHORTEST, self.save_time / SHARE)
        now = self._clock()
        left = interval.total_seconds() - (now - self._saved_at)
        due = left <= 0
        if world == 1:
            return due, step + 1
        made = step - self.first
        step_seconds = max(1e-6, (now - self._began) / made)
        wait = interval.total_seconds() if due else left
        return due, step + max(1, min(made, int(wait / step_seconds)))
