"""When an agent stands for election, and whether it has won; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from elastic_trainer.protocol.message import Electorate
from elastic_trainer.succession.ballot import Vote
from elastic_trainer.succession.electorate import missing, next_election

TURN_SECONDS = 0.3
"""Between the times at which two agents, one rank apart, stand for election."""
JITTER_SECONDS = 0.1


def turn(known: Electorate, agent: str, gone: Collection[str]) -> int | None:
    """Return how many others stand before `agent`; None: it is no elector.

    Members of the newest round stand first, by rank. Those of earlier ones do, too: one of them may
    be the only one to know of it.
    """
    members = [m.agent for group in reversed(known.groups) for m in group.members if m.port]
    living = [name for name in dict.fromkeys(members) if name not in gone]
    return living.index(agent) if agent in living else None


@dataclass
class Count:
    """The votes for one candidate, as they come in."""

    agent: str
    electorate: Electorate
    gone: set[str] = field(default_factory=set)
    votes: dict[str, Vote] = field(default_factory=dict)

    @property
    def granted(self) -> set[str]:
        return {self.agent, *(name for name, one in self.votes.items() if one.granted)}

    @property
    def won(self) -> bool:
        return not missing(self.electorate, self.granted, self.gone)

    def next_term(self, sworn: int) -> int:
        """Return the term to stand for, above all that the voters have told."""
        return next_election(max(sworn, *_terms(self.votes)), self.agent)


def _terms(votes: Mapping[str, Vote]) -> list[int]:
    return [0, *(one.term for one in votes.values())]
