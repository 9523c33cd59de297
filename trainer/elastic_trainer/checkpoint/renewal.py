"""Background work that is begun anew after it has failed, by all ranks at once.

A disk or a memory that is full for a minute must not end it for good. The waits between grow, as
each new one costs a process group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elastic_trainer.checkpoint.lockstep import Lockstep, LockstepError, Peers
from elastic_trainer.checkpoint.save import Save
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.slot import Label, Slot

FIRST_WAIT = 10.0
"""Seconds, from when all ranks know that the work has failed."""
LONGEST_WAIT = 600.0
"""Seconds; work that went well for so long has the first wait again."""

log = logging.getLogger(__name__)


class Renewal:
    """Decides when failed work is begun anew; the same on all ranks, who tell it the same. Pure."""

    def __init__(self) -> None:
        self._wait = FIRST_WAIT
        self._again_at: float | None = None
        """None while the work goes on."""
        self._well_since: float | None = None

    def decide(self, failed: bool, now: float) -> bool:
        """Return whether to begin anew now.

        Args:
            failed: on any rank.
            now: seconds of one clock.
        """
        if not failed:
            if self._well_since is None:
                self._well_since = now
            if now - self._well_since >= LONGEST_WAIT:
                self._wait = FIRST_WAIT
            return False
        self._well_since = None
        if self._again_at is None:
            self._again_at = now + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        if now < self._again_at:
            return False
        self._again_at = None
        return True


class BackgroundWork:
    """Lockstep work, renewed at a save once it has failed. Methods are for all ranks at once.

    Args:
        name, work: as Lockstep's.
        clock: monotonic seconds; rank 0's counts.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Slot, Label, Peers], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._work, self._clock = name, work, clock
        self._renewal = Renewal()
        self._lockstep = Lockstep(name, work)

    def saved(self, save: Save | None) -> None:
        """This rank has saved to memory, or could not."""
        failed = self._lockstep.failure is not None
        said = ProcessGroup.current().gather((failed, self._clock()))
        if self._renewal.decide(any(one for one, _ in said), said[0][1]):
            self._lockstep.close(LockstepError("the work has failed on another rank"))
            self._lockstep = Lockstep(self._name, self._work)
            if ProcessGroup.current().rank == 0:
                log.warning("%s in the background are tried anew", self._name)
        self._lockstep.saved(save)

    def leave(self) -> None:
        """The ranks' world is over, on all of them; waits for nothing."""
        self._lockstep.leave()

    def flush(self) -> BaseException | None:
        """Wait until nothing is under way; return what ended the work, if anything."""
        return self._lockstep.flush()
