"""Judges each node by the trials of a node check; pure.

A trial passes only if all its members are sound, so one that passes proves them all. One that fails
says that one of them is broken, and which one once all the others are proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

WITNESSES = 2
"""Trials beside proven nodes that a node must fail to be called faulty: one may have failed for
the other's sake after all, or for the way between the two."""
SLOW = 2.0
"""Times what a quick node takes: a node that takes longer, twice and in other company, is a
straggler."""
QUICK_SHARE = 0.2
"""Part of the nodes, by their fastest trials, of which the last is a quick one. Not half: where 3
nodes of 10 are slow, most wait for a slow one in their first trial."""


class Verdict(Enum):
    PROVEN = "proven"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Trial:
    """The end of one group's trial in one round."""

    round: int
    members: tuple[str, ...]
    passed: bool | None
    """None: it could not be run, which says nothing of anybody."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time that each member took, where the trial passed."""
    unable: frozenset[str] = frozenset()
    """Members that have no means to run it, such as a library that is missing."""


@dataclass(frozen=True)
class Evidence:
    """The trials so far, by node."""

    proven: frozenset[str]
    faulty: frozenset[str]
    unable: frozenset[str]
    met: Mapping[str, Set[str]]
    """By node, those that it was alone with in a trial."""
    slow: Mapping[str, int]
    """Nodes that took over `SLOW` times what a quick one takes in each of so many trials."""
    judged: Set[str]
    """Those of them that were slow twice, and alone with a quick one: not for others' sake."""

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Evidence:
        proven = frozenset(
            node for trial in trials if trial.passed is True for node in trial.members
        )
        against: dict[str, int] = {}
        for trial in trials:
            accused = [node for node in trial.members if node not in proven]
            if trial.passed is False and len(accused) == 1:
                against[accused[0]] = against.get(accused[0], 0) + 1
        met: dict[str, set[str]] = {}
        for trial in trials:
            if len(trial.members) == 2:
                one, other = trial.members
                met.setdefault(one, set()).add(other)
                met.setdefault(other, set()).add(one)
        slow = _slow(trials)
        return cls(
            proven,
            frozenset(node for node, count in against.items() if count >= WITNESSES),
            frozenset(node for trial in trials for node in trial.unable),
            met,
            slow,
            _judged(trials, slow),
        )

    def verdict(self, node: str) -> Verdict:
        if node in self.proven:
            return Verdict.PROVEN
        return Verdict.FAULTY if node in self.faulty else Verdict.UNKNOWN


def _slow(trials: Iterable[Trial]) -> dict[str, int]:
    """Judges a node by its fastest trial, as a slow partner makes it wait."""
    taken: dict[str, list[float]] = {}
    for trial in trials:
        if trial.passed:
            for node, seconds in trial.seconds.items():
                taken.setdefault(node, []).append(seconds)
    if not taken:
        return {}
    fastest = sorted(min(times) for times in taken.values())
    limit = SLOW * fastest[int(QUICK_SHARE * (len(fastest) - 1))]
    return {node: len(times) for node, times in taken.items() if min(times) > limit}


def _judged(trials: Iterable[Trial], slow: Mapping[str, int]) -> Set[str]:
    beside_quick = set()
    for trial in trials:
        waits = [node for node in trial.members if node in slow]
        if trial.passed and len(trial.members) == 2 and len(waits) == 1:
            beside_quick.add(waits[0])
    return {node for node in beside_quick if slow[node] > 1}


def verdicts(nodes: Iterable[str], trials: Sequence[Trial]) -> dict[str, Verdict]:
    """Return what is known of each node.

    Under two assumptions, that a trial with a broken member fails and that others pass, no sound
    node is ever called faulty and no broken one proven.
    """
    evidence = Evidence.of(trials)
    return {node: evidence.verdict(node) for node in nodes}


def stragglers(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the nodes that were slow in two trials or more, once with a quick one, with their
    least seconds."""
    slow = _judged(trials, _slow(trials))
    return {
        node: min(trial.seconds[node] for trial in trials if trial.passed and node in trial.seconds)
        for node in sorted(slow)
    }
