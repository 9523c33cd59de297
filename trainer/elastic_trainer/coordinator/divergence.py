"""Finds ranks whose state is another than the others', though all have the same; pure.

At each commit the ranks tell a digest of what they have alike. Where one differs, a bit was flipped
in its memory, or its arithmetic is another: no error says so, and each step since carries it on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.replacement import replace

KEPT_STEPS = 4
"""Steps of which not all have told yet, of which the newest are waited for."""

Rank = TypeVar("Rank", bound=Hashable)
Key = tuple[str, int]
"""Agent and local rank."""


_NOBODY: PersistentMap[str, tuple[str, ...]] = PersistentMap()


@dataclass(frozen=True)
class Diverged:
    """A rank whose state is another than the others'."""

    since: float
    """When that was found."""
    step: int
    """At which it was found."""
    agreed: int
    """The newest step before at which all were compared and had the same; -1: none."""
    outvoted: bool
    """Most ranks have another state, all the same. If not, each rank's may be the wrong one."""


@dataclass(frozen=True)
class ReplicaWatch:
    """Knowledge of the ranks' states."""

    round: int = -1
    told: Mapping[int, PersistentMap[str, tuple[str, ...]]] = field(default_factory=dict)
    """Digests by step, agent and local rank, of steps of which not all have told."""
    judged: int = -1
    """The newest step at which all were compared in this round."""
    agreed: int = -1
    """The newest step at which all had the same."""
    diverged: Mapping[Key, Diverged] = field(default_factory=dict)
    """Ranks that differed at the step that was judged last, in whichever round."""
    total: int = 0
    """Ranks that were ever found so, as often as they were."""

    def heard(
        self,
        number: int,
        step: int,
        agent: str,
        digests: tuple[str, ...],
        members: Collection[str],
        now: float,
    ) -> ReplicaWatch:
        """Return the watch once an agent of round `number`, of those `members`, has told of a step.

        Steps are judged once all have told of them, so one that a node passed over never is.
        """
        watch = self
        if number != self.round:
            watch = replace(self, round=number, told={}, judged=-1)
        if step <= watch.judged:
            return watch
        told = watch.told.get(step, _NOBODY).with_entry(agent, digests)
        if len(told) < len(members) or any(name not in told for name in members):
            kept = {**watch.told, step: told}
            return replace(watch, told={one: kept[one] for one in sorted(kept)[-KEPT_STEPS:]})
        return watch._judged(
            step,
            {
                (name, local_rank): digest
                for name in members
                for local_rank, digest in enumerate(told[name])
            },
            now,
        )

    def _judged(self, step: int, digests: Mapping[Key, str], now: float) -> ReplicaWatch:
        ranks, outvoted = odd_ones(digests)
        agreed = min(self.agreed, step - 1)  # a round that began anew may be before it
        found = {
            key: replace(self.diverged[key], outvoted=outvoted)
            if key in self.diverged
            else Diverged(now, step, agreed, outvoted)
            for key in ranks
        }
        return replace(
            self,
            told={later: one for later, one in self.told.items() if later > step},
            judged=step,
            agreed=agreed if ranks else step,
            diverged=found,
            total=self.total + len(found.keys() - self.diverged.keys()),
        )

    @property
    def outvoted(self) -> frozenset[Key]:
        """Return the ranks whose state nobody is to go on from."""
        return frozenset(key for key, one in self.diverged.items() if one.outvoted)


def odd_ones(digests: Mapping[Rank, str]) -> tuple[frozenset[Rank], bool]:
    """Return the ranks that have another digest than most, and True; where more than half agree on
    none, all of them, and False."""
    counts = Counter(digests.values()).most_common(1)
    if not counts or counts[0][1] == len(digests):
        return frozenset(), False
    usual, holders = counts[0]
    if 2 * holders > len(digests):
        return frozenset(rank for rank, digest in digests.items() if digest != usual), True
    return frozenset(digests), False
