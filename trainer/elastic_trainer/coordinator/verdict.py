"""Whether another round is of any use, by the failures and rounds so far; pure.

Counted here and not by each agent, as the same error may show on one node after another.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from elastic_trainer.coordinator.model import RoundRecord
from elastic_trainer.failures.record import OUT_OF_MEMORY
from elastic_trainer.protocol.message import Failed

FRUITLESS_ROUNDS = 5
"""After so many rounds in a row whose workers failed before the first step, trying is no use."""
FRUITLESS_SECONDS = 60.0
"""A round that lasted so long is none of them: of a script without a link no step is ever told."""

_ENDED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


def hopeless(
    failed: Failed, failures: Iterable[Failed], rounds: Sequence[RoundRecord], now: float
) -> str | None:
    """Why no further round is to be made; None if one may help.

    Args:
        failed: what has just become known.
        failures: the others.
        rounds: of this attempt, in order; failures of others count for nothing.
    """
    for earlier in failures:
        if _repeats(failed, earlier, rounds):
            return (
                f"rounds {earlier.round} and {failed.round} ended in the same error, and the later "
                f"one no step further: {failed.error}: {failed.message}"
            )
    if _fruitless([*failures, failed], rounds, now):
        return (
            f"{FRUITLESS_ROUNDS} rounds in a row failed before their first step; the last: "
            f"{failed.message}"
        )
    return None


def _repeats(failed: Failed, earlier: Failed, rounds: Sequence[RoundRecord]) -> bool:
    """Whether a later round has come to the same end, and no further."""
    if not failed.error or failed.error != earlier.error or failed.round <= earlier.round:
        return False
    last_steps = {one.round: -1 if one.last_step is None else one.last_step for one in rounds}
    if earlier.round not in last_steps or failed.round not in last_steps:
        return False  # before our restart: nobody knows what was reached in between
    before = max(earlier.step, last_steps[earlier.round])
    since = [step for number, step in last_steps.items() if earlier.round < number <= failed.round]
    return max(failed.step, *since) <= before


def _fruitless(failures: Iterable[Failed], rounds: Sequence[RoundRecord], now: float) -> bool:
    failing = {one.round for one in failures if _by_itself(one)}
    last = rounds[-FRUITLESS_ROUNDS:]
    return len(last) == FRUITLESS_ROUNDS and all(
        one.round in failing
        and one.first_step is None
        and (now if one.end_time is None else one.end_time) - one.time < FRUITLESS_SECONDS
        for one in last
    )


def _by_itself(failed: Failed) -> bool:
    """Rather than giving way to another (code 0), or killed by who knows whom."""
    ended = failed.code != 0 and failed.code not in _ENDED_FROM_OUTSIDE
    return ended or failed.message == OUT_OF_MEMORY
