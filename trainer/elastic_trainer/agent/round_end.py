"""Decides how long a node's workers have to come out of a round that is over; pure.

A worker that waits in a collective of such a round is broken out by its link. Whatever keeps it
there, or ends it unheard, torchrun starts this node's workers anew at a deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_trainer.agent.local_round import LocalRound


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The end of a round whose workers may wait for the next one in process."""

    round: int
    deadline: float
    """When they have to be out of it, unless one says before that it can't; seconds of the clock
    that `must_restart` is asked by."""
    patience: float = 0.0
    """How long that is from the round's end."""

    def must_restart(self, local: LocalRound, now: float) -> bool:
        """Return whether torchrun is to start the workers anew, which are not out yet."""
        return now >= self.deadline or local.stuck or not local.recovers
