"""Electorates, by hand: whose word an election takes."""

from __future__ import annotations

import pytest
from elastic_trainer.protocol.message import Electorate, Group, Member, Round
from elastic_trainer.succession.ballot import Ballot, Voter, swear, take, vote
from elastic_trainer.succession.candidacy import Count, turn
from elastic_trainer.succession.electorate import (
    earlier_groups,
    electorate_of,
    is_newer,
    missing,
    next_election,
    settled,
)


def group(names: str) -> Group:
    return Group(tuple(Member(name, i, name, 1) for i, name in enumerate(names)))


@pytest.mark.parametrize(
    ("members", "present", "gone", "host", "decides"),
    [
        ("abc", "ab", "", "", True),
        ("abc", "a", "", "a", False),
        ("abcd", "ab", "", "", False),
        ("abcd", "ab", "", "a", True),
        ("abcd", "bc", "", "a", False),
        ("ab", "b", "", "", False),
        ("ab", "b", "a", "", True),
        ("abc", "c", "ab", "", True),
        ("abcde", "de", "ab", "", True),
        ("abcde", "e", "ab", "", False),
    ],
)
def test_more_than_half_of_those_who_may_be_there_decide_or_half_with_the_host(
    members: str, present: str, gone: str, host: str, decides: bool
) -> None:
    known = Electorate(0, 1, (group(members),))
    assert (missing(known, set(present), set(gone), host) == ()) is decides


def test_whoever_is_missed_is_named() -> None:
    known = Electorate(0, 1, (group("abc"),))
    assert [member.agent for member in missing(known, {"a"}, {"b"})] == ["c"]


def test_until_enough_have_taken_a_round_those_of_the_one_before_must_agree_too() -> None:
    before = Electorate(0, 1, (group("abcde"),))
    members = group("af").members
    made = Round(2, members, term=0, groups=earlier_groups(before, members))
    known = electorate_of(made)
    assert missing(known, {"a", "f"}, set()) and missing(known, {"a", "b", "c"}, set())
    assert not missing(known, {"a", "f", "b", "c"}, set())
    assert is_newer(settled(known), known) and is_newer(known, before)
    assert not missing(settled(known), {"a", "f"}, set())


def test_a_round_of_the_same_members_needs_nobody_else() -> None:
    before = Electorate(0, 1, (group("ab"),))
    assert earlier_groups(before, group("ab").members) == ()


def test_agents_without_a_succession_service_have_no_say() -> None:
    made = Round(1, (Member("a", 0, "a"), Member("b", 1, "b")))
    assert missing(electorate_of(made), set(), set()) == ()


def test_an_agent_votes_once_in_a_term_and_again_for_the_same_candidate() -> None:
    voter = Voter(0, "", Electorate(0, 3, (group("abc"),)))
    voter, first = vote(voter, Ballot(1000, "a", "a:1", 0, 3), "")
    assert first.granted and voter.sworn == 1000
    voter, again = vote(voter, Ballot(1000, "a", "a:1", 0, 3), "hears it")
    assert again.granted
    voter, other = vote(voter, Ballot(1000, "b", "b:1", 0, 3), "")
    assert not other.granted
    assert vote(swear(voter, 2000), Ballot(1000, "a", "a:1", 0, 3), "")[1].granted is False


@pytest.mark.parametrize(
    ("ballot", "objection"),
    [
        (Ballot(1000, "a", "a:1", 0, 2), ""),
        (Ballot(1000, "a", "a:1", 0, 3), "hears its coordinator"),
        (Ballot(0, "a", "a:1", 0, 3), ""),
    ],
)
def test_no_vote_is_granted_to_who_knows_less_or_while_the_coordinator_is_there(
    ballot: Ballot, objection: str
) -> None:
    voter = Voter(0, "", Electorate(0, 3, (group("abc"),)))
    after, answer = vote(voter, ballot, objection)
    assert not answer.granted and answer.why and after == voter


def test_a_member_to_whom_no_round_came_yet_votes_too() -> None:
    """Else the one to whom it came could never be elected, where there are two."""
    voter, answer = vote(Voter(), Ballot(1000, "a", "a:1", 0, 1), "")
    assert answer.granted and voter.sworn == 1000


def test_a_trial_binds_nobody() -> None:
    voter = Voter(0, "", Electorate(0, 3, (group("abc"),)))
    after, answer = vote(voter, Ballot(1000, "a", "a:1", 0, 3, trial=True), "")
    assert answer.granted and after == voter


def test_a_voter_keeps_the_newest_electorate() -> None:
    newest = Electorate(1000, 2, (group("ab"),))
    assert take(Voter(1000, "", newest), Electorate(0, 9, (group("abc"),))).electorate == newest


def test_agents_stand_in_the_order_of_their_ranks_without_those_that_are_gone() -> None:
    known = Electorate(0, 1, (group("abc"),))
    assert [turn(known, name, {"a"}) for name in "abc"] == [None, 0, 1]


def test_terms_of_elections_are_beyond_all_restarts_of_earlier_hosts() -> None:
    terms = [next_election(term, "a") for term in (0, 7, 1000, 1999)]
    assert [term // 1000 for term in terms] == [1, 1, 2, 2]
    assert len({next_election(0, name) for name in "abcde"}) == 5, "each agent's own"
    count = Count("a", Electorate(0, 1, (group("ab"),)))
    assert not count.won and count.next_term(1001) // 1000 == 2
