"""Tells how long newcomers wait where a change of the round is dear; pure.

All who train stand still for a change. Where thousands of ranks take minutes to connect, that costs
more than one node brings in hours, and nobody knows when the next loss comes, with which newcomers
would come along. So they wait until they have lost by it what a change costs the others, which is
at most twice what is lost by whoever does know (the ski rental problem).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from elastic_trainer.coordinator.model import RoundRecord
from elastic_trainer.coordinator.set_seconds import set_seconds

JOIN_WAIT_VARIABLE = "VOLCANO_ELASTIC_JOIN_WAIT_SECONDS"
JOIN_WAIT_SECONDS = 3600.0
MANY = 64
"""The fewest nodes of a round in which it is weighed what a change costs."""
DEAR = 10.0
"""The least seconds that all stand still for a change that is weighed."""
RECENT = 5
"""Rounds by which it is told how long that is."""


def join_wait_seconds(environment: Mapping[str, str]) -> float:
    """Return the longest that newcomers wait, 0: they never do. Raises ValueError for what is no
    time."""
    return set_seconds(environment, JOIN_WAIT_VARIABLE, JOIN_WAIT_SECONDS, "no wait")


def start_up(rounds: Sequence[RoundRecord], step_seconds: float) -> float:
    """Return the seconds from a round's making until its first step begins, as the last rounds took
    in the median that began in process; 0: none has. What scripts load when they start isn't paid
    again for a newcomer.

    Args:
        rounds: the oldest first.
        step_seconds: of a step.
    """
    took = [
        one.first_step_time - one.time - step_seconds
        for one in rounds
        if one.live and one.first_step_time is not None
    ]
    return max(0.0, median(took[-RECENT:])) if took else 0.0


def patience(seconds: float, staying: int, newcomers: int, most: float) -> float:
    """Return how long newcomers wait for another change of the round, in seconds.

    Args:
        seconds: that all stand still for a change.
        staying: nodes that are in the round.
        newcomers: nodes by which it would grow.
        most: the longest.
    """
    if staying < MANY or seconds < DEAR:
        return 0.0
    return min(most, seconds * staying / newcomers)
