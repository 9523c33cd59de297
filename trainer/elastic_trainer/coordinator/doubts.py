"""Agents that doubt whether their round stands, and who has said that it does; pure.

A worker whose collective failed has lost a peer, or the error is its script's own. Of a loss word
comes, but on a busy machine it may come late. So all members are asked whether their workers are
there. Once all have said so since, nobody was lost before; and who doesn't say so is lost, or tells
of the worker that has ended, either of which ends the round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.replacement import replace

GATHER_SECONDS = 0.1
"""From a doubt to the question. Word of a loss mostly comes within it, and then a large job's
members are told of the loss alone; where all doubt at once, one question is for all."""


@dataclass(frozen=True)
class Doubts:
    """Those of one round."""

    question: int = 0
    """Number of the one that was put last to all members."""
    told: PersistentMap[str, int] = field(default_factory=PersistentMap)
    """By agent that doubted before the question, the number of its newest doubt."""
    later: PersistentMap[str, int] = field(default_factory=PersistentMap)
    """Those that came since: what members have said by then says nothing of them."""
    since: float = 0.0
    """When the first of those came."""
    standing: frozenset[str] = frozenset()
    """The agents that have answered."""

    def with_doubt(self, agent: str, doubt: int, now: float) -> Doubts:
        since = self.since if self.later else now
        return replace(self, later=self.later.with_entry(agent, doubt), since=since)

    def answered(self, agent: str, question: int) -> Doubts:
        if question != self.question:
            return self
        return replace(self, standing=self.standing | {agent})

    def is_due(self, now: float) -> bool:
        """Return whether a question is to be put."""
        return bool(self.later) and not self.told and now >= self.since + GATHER_SECONDS

    def asked(self) -> Doubts:
        """Return them once the next question is put to all members."""
        return Doubts(self.question + 1, told=self.later)

    def settled(self) -> Doubts:
        """Return them once those that doubted before the question are told."""
        return Doubts(self.question, later=self.later, since=self.since)
