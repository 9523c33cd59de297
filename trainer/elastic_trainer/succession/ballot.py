"""An agent's vote on who hosts the coordinator next; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_trainer.protocol.message import Electorate
from elastic_trainer.succession.electorate import is_newer


@dataclass(frozen=True)
class Ballot:
    """A candidate's question to the voters."""

    term: int
    candidate: str
    """Its agent."""
    address: str
    """HOST:PORT where its coordinator is going to listen."""
    electorate_term: int
    electorate_round: int
    trial: bool = False
    """Only asks whether a vote would be granted."""


@dataclass(frozen=True)
class Vote:
    granted: bool
    term: int
    """That the voter has sworn to."""
    why: str = ""


@dataclass(frozen=True)
class Voter:
    """The state that an agent's vote depends on. It is lost with the agent's process, which is no
    voter any more when it begins anew."""

    sworn: int = 0
    """The highest term it knows of. It follows no coordinator of a lower one."""
    voted_for: str = ""
    """The candidate that it has granted that term."""
    electorate: Electorate | None = None


def vote(voter: Voter, ballot: Ballot, objection: str) -> tuple[Voter, Vote]:
    """Return the voter after a ballot, and its answer.

    One that was never told of a round votes, too: who asks it knows that it is in one, and may
    need its vote where that round never came to it.

    Args:
        objection: why this agent wants no election now; empty: it has none.
    """
    known = voter.electorate
    mine = (known.term, known.round) if known is not None else (0, 0)
    asked = (ballot.electorate_term, ballot.electorate_round)
    again = ballot.term == voter.sworn and ballot.candidate == voter.voted_for
    if again and not ballot.trial:
        return voter, Vote(True, voter.sworn)
    if ballot.term <= voter.sworn:
        return voter, Vote(False, voter.sworn, f"has sworn to term {voter.sworn}")
    if asked < mine:
        return voter, Vote(False, voter.sworn, f"knows of round {mine[1]} of term {mine[0]}")
    if objection:
        return voter, Vote(False, voter.sworn, objection)
    if ballot.trial:
        return voter, Vote(True, voter.sworn)
    voter = replace(voter, sworn=ballot.term, voted_for=ballot.candidate)
    return voter, Vote(True, voter.sworn)


def take(voter: Voter, known: Electorate) -> Voter:
    """Return the voter after it was told an electorate by the coordinator that it follows."""
    return replace(voter, electorate=known) if is_newer(known, voter.electorate) else voter


def swear(voter: Voter, term: int) -> Voter:
    """Return the voter after it heard of a coordinator of `term`."""
    return replace(voter, sworn=term, voted_for="") if term > voter.sworn else voter
