"""Tells whose word it takes to make a round, or to take the coordinator over; pure.

An electorate is the members of the newest round that is known. A coordinator makes a further round
only while it hears enough of them, and an agent takes over only with the votes of more than half of
them. Until enough have taken a new round, its members and those of the one before must both agree,
as in Raft's joint consensus: so whichever of the two a voter knows, two sides have a voter in
common. Members that are proven gone can't be on the other side, so they don't count.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace

from elastic_trainer.protocol.message import Electorate, Group, Member, Round

TERMS_OF_A_HOST = 1000
"""An agent that is elected has so many terms, the first for its election, the others for the
restarts of its coordinator: no two coordinators ever have the same."""


def next_election(term: int, agent: str) -> int:
    """Return the term of `agent` if it is elected after `term`.

    Each agent has its own. A term has one host where all who vote know of one another; but where a
    new worker 0 began while others could not be reached, both sides may elect.
    """
    own = zlib.crc32(agent.encode()) % (TERMS_OF_A_HOST - 100)
    return (term // TERMS_OF_A_HOST + 1) * TERMS_OF_A_HOST + own


def electorate_of(made: Round) -> Electorate:
    """Return the electorate that the members of a round have from its beginning."""
    return Electorate(made.term, made.round, _with(made.groups, made.members), made.contested)


def earlier_groups(known: Electorate | None, members: Collection[Member]) -> tuple[Group, ...]:
    """Return the groups that must agree besides the members of the round to be made."""
    groups = known.groups if known is not None else ()
    agents = {member.agent for member in members}
    return tuple(g for g in groups if {m.agent for m in g.members} != agents)


def settled(known: Electorate) -> Electorate:
    """Return the electorate once enough of all its groups have taken its round."""
    return replace(known, groups=known.groups[-1:])


def is_contested(
    known: Electorate, present: Collection[str], left: Collection[str], host: str = ""
) -> bool:
    """Tell whether others may have gone on from the round that `known` is of, and have ended since,
    of whom none of those present knows: they aren't enough unless those count out who are gone.

    Args:
        left: agents that are gone by what they said to this coordinator, so that they can't have
            gone on without it.
    """
    return known.contested or bool(missing(known, present, left, host))


def is_newer(one: Electorate, other: Electorate | None) -> bool:
    """Tell whether `one` knows more: of a later round, or that it was taken by enough."""
    if other is None:
        return True
    mine, theirs = (one.term, one.round), (other.term, other.round)
    return mine > theirs or (mine == theirs and len(one.groups) < len(other.groups))


def voters(known: Electorate) -> Mapping[str, Member]:
    """Return all members that have a vote, by agent."""
    return known.voters


def missing(
    known: Electorate | None,
    present: Collection[str],
    gone: Collection[str],
    host: str = "",
) -> tuple[Member, ...]:
    """Return the members who are missed; none if those who are present may decide.

    Args:
        present: agents that agree.
        gone: agents that are proven gone: they agree with nobody any more.
        host: the agent for which just half of each group is enough, itself one of them: only the
            host which made the electorate's round. Whoever would depose it needs more than half.
    """
    for group in known.groups if known is not None else ():
        living = [m for m in group.members if m.port and m.agent not in gone]
        there = [m for m in living if m.agent in present]
        tie = bool(host) and any(m.agent == host for m in there)
        if living and 2 * len(there) + tie <= len(living):
            return tuple(m for m in living if m.agent not in present)
    return ()


def too_few(known: Electorate, present: int, gone: int) -> bool:
    """Tell whether `missing` certainly finds some, by numbers alone, which cost nothing: `present`
    agents agree, and `gone` are proven gone."""
    return any(2 * present + 1 <= group.votes - gone for group in known.groups)


def _with(groups: tuple[Group, ...], members: tuple[Member, ...]) -> tuple[Group, ...]:
    return (*groups, Group(members)) if any(m.port for m in members) else groups
