"""Decides what the failures so far call for: another round, one without a node, or none; pure.

Counted here and not by each agent, as the same error may show on one node after another: what two
nodes raise is the script's fault, and fails the job; what one node raises again and again may be
the node's own, and leaves it out, where the others are enough.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastic_trainer.coordinator.hang import Hang
from elastic_trainer.coordinator.model import RoundRecord
from elastic_trainer.failures.node_fault import ended_by_a_peer
from elastic_trainer.failures.record import OUT_OF_MEMORY
from elastic_trainer.protocol.message import Failed

NO_PROGRESS_ROUNDS = 5
"""After so many rounds in a row whose workers failed before a step, one more is no use."""
NO_PROGRESS_SECONDS = 60.0
"""A round that lasted so long is none of them: of a script without a link no step is ever told."""
UNEXPLAINED_HANGS = 3
"""Rounds that hang at the same step, and no rank is behind, until one more is no use: maybe it is
the network, which may come back. Where a rank is, two are enough."""
DEVICE_ERRORS = 3
"""Rounds of an attempt in which a node's devices failed, however far these came: at this one the
node is left out."""

_ENDED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


class _End(Protocol):
    """An end of a round: a worker's failure, or a hang."""

    @property
    def round(self) -> int: ...

    @property
    def step(self) -> int: ...


@dataclass(frozen=True)
class Exclude:
    """No further round has workers of this node."""

    node: str
    reason: str


@dataclass(frozen=True)
class Fail:
    """No further round is made."""

    reason: str


def decide(
    failed: Failed,
    failures: Iterable[Failed],
    rounds: Sequence[RoundRecord],
    now: float,
    enough_without: Callable[[str], bool],
) -> Exclude | Fail | None:
    """Return what a failure that has just become known calls for; None: another round may help.

    Args:
        failed: it; with its node.
        failures: those known before.
        rounds: of this attempt, in order; failures of others count for nothing.
        now: of the clock of `rounds`.
        enough_without: whether the job can go on without a node.
    """
    known = list(failures)
    if failed.node_fault:
        return _judge_device(failed, known, rounds, enough_without)
    repeated = [earlier for earlier in known if _repeats(failed, earlier, rounds)]
    if repeated:
        elsewhere = [one for one in repeated if one.node != failed.node]
        earlier = (elsewhere or repeated)[0]
        reason = (
            f"rounds {earlier.round} and {failed.round} ended in the same error, and the later "
            f"one no step further: {failed.error}: {failed.message}"
        )
        return _node_or_all(failed.node, bool(elsewhere), reason, enough_without)
    failing = _without_progress([*known, failed], rounds, now)
    if failing:
        reason = (
            f"{NO_PROGRESS_ROUNDS} rounds in a row failed before their first step; the last: "
            f"{failed.message}"
        )
        return _node_or_all(failed.node, len(failing) > 1, reason, enough_without)
    return None


def decide_hang(
    found: Hang,
    hangs: Iterable[Hang],
    rounds: Sequence[RoundRecord],
    enough_without: Callable[[str], bool],
) -> Exclude | Fail | None:
    """Return what a round that is ended as hung calls for; None: another one may help.

    Args:
        found: of that round.
        hangs: those known before.
        rounds: of this attempt, in order.
        enough_without: whether the job can go on without a node.
    """
    known = [one for one in hangs if one.broken and one.round < found.round]
    if found.nodes:  # where nobody was behind, it was no other node's either
        known = [one for one in known if one.nodes]
    repeated = [one for one in known if _no_further(one, found, rounds)]
    if len(repeated) < (1 if found.nodes else UNEXPLAINED_HANGS - 1):
        return None
    elsewhere = [one for one in repeated if one.nodes != found.nodes]
    earlier = (elsewhere or repeated)[0]
    numbers = f"rounds {earlier.round} and {found.round} hung"
    step = max((one.last_step for one in rounds if one.last_step is not None), default=-1)
    where = f"after step {step}, the later one no step further" if step >= 0 else "before any step"
    at = f", on {', '.join(found.nodes)}" if found.nodes else ""
    reason = f"{numbers} {where}: {found.words}{at}; no step for {found.seconds:.0f} s"
    always = set(found.nodes).intersection(*(one.nodes for one in repeated))
    return _node_or_all("".join(always), len(always) != 1, reason, enough_without)


def _node_or_all(
    node: str, on_others_too: bool, reason: str, enough_without: Callable[[str], bool]
) -> Exclude | Fail:
    if on_others_too or not enough_without(node):
        return Fail(reason)
    return Exclude(node, f"on this node alone, {reason}")


def _judge_device(
    failed: Failed,
    known: list[Failed],
    rounds: Sequence[RoundRecord],
    enough_without: Callable[[str], bool],
) -> Exclude | Fail | None:
    numbers = {one.round for one in rounds}
    mine = [
        one
        for one in known
        if one.node == failed.node
        and one.round in numbers
        and one.round < failed.round
        and one.node_fault
    ]
    again = any(_no_further(one, failed, rounds) for one in mine)
    if not again and len({one.round for one in mine}) + 1 < DEVICE_ERRORS:
        return None
    reason = f"its devices failed in rounds {_listed(mine, failed)}; the last: {failed.message}"
    if enough_without(failed.node):
        return Exclude(failed.node, reason)
    return Fail(f"too few nodes are left without {failed.node}: {reason}")


def _listed(earlier: list[Failed], failed: Failed) -> str:
    numbers = sorted({one.round for one in earlier} | {failed.round})
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


def _repeats(failed: Failed, earlier: Failed, rounds: Sequence[RoundRecord]) -> bool:
    """Return whether a later round has come to the same end of the training's own code, no
    further."""
    same = bool(failed.error) and failed.error == earlier.error
    return same and failed.round > earlier.round and _no_further(earlier, failed, rounds)


def _no_further(earlier: _End, failed: _End, rounds: Sequence[RoundRecord]) -> bool:
    """Return whether training was no step further at a later round's end."""
    last_steps = {one.round: -1 if one.last_step is None else one.last_step for one in rounds}
    if earlier.round not in last_steps or failed.round not in last_steps:
        return False  # before our restart: nobody knows what was reached in between
    before = max(earlier.step, last_steps[earlier.round])
    since = [step for number, step in last_steps.items() if earlier.round < number <= failed.round]
    return max(failed.step, *since) <= before


def _without_progress(
    failures: Iterable[Failed], rounds: Sequence[RoundRecord], now: float
) -> set[str]:
    """Return the nodes whose scripts failed in the last rounds, if those have come to nothing."""
    failing: dict[int, set[str]] = {}
    for one in failures:
        if _by_itself(one) and not one.node_fault:
            failing.setdefault(one.round, set()).add(one.node)
    last = rounds[-NO_PROGRESS_ROUNDS:]
    none_stepped = len(last) == NO_PROGRESS_ROUNDS and all(
        one.round in failing
        and one.first_step is None
        and (now if one.end_time is None else one.end_time) - one.time < NO_PROGRESS_SECONDS
        for one in last
    )
    return set().union(*(failing[one.round] for one in last)) if none_stepped else set()


def _by_itself(failed: Failed) -> bool:
    """Rather than giving way to another (code 0), killed by who knows whom, or left by a peer."""
    ended = failed.code != 0 and failed.code not in _ENDED_FROM_OUTSIDE
    own = ended and not ended_by_a_peer(failed.message, failed.stack)
    return own or failed.message == OUT_OF_MEMORY
