"""An agent's belief about its coordinator, and where it looks for another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_trainer.protocol.message import Electorate, Group, Heartbeat, Member
from elastic_trainer.succession.agent_status import AgentStatus, Found
from elastic_trainer.succession.ballot import Ballot
from elastic_trainer.succession.candidacy import turn
from elastic_trainer.succession.follower import Follower
from elastic_trainer.succession.peers import read_peers

MEMBERS = tuple(Member(name, rank, name, 1) for rank, name in enumerate("abc"))
KNOWN = Electorate(0, 3, (Group(MEMBERS),))


def follower(agent: str = "b") -> Follower:
    """Return one that heard the coordinator of agent a at time 10."""
    heard = Follower(agent, 1.0).takes(KNOWN).hears(10.0)
    return heard.hears_beat(Heartbeat(0, MEMBERS[0], 1, 3), "a:1")


def status(term: int, address: str, *, hosts: bool = False, heard: bool = True) -> AgentStatus:
    return AgentStatus("job", "a", term, address, hosts, heard, 3)


def test_a_host_that_has_ended_is_lost_at_once_and_a_silent_one_after_the_limit() -> None:
    one = follower()
    assert one.judges(Found(gone=True), 10.1).host_lost
    assert not one.judges(Found(), 10.9).host_lost
    assert one.judges(Found(), 11.0).host_lost
    assert one.judges(Found(), 11.0).hears(11.1).host_lost is False


def test_a_host_that_starts_its_coordinator_again_is_waited_for_however_long_it_takes() -> None:
    assert not follower().judges(Found(status(0, "a:1", hosts=True, heard=False)), 99.0).host_lost


def test_a_host_that_hosts_no_more_may_vote_and_one_that_is_silent_is_not_asked() -> None:
    lost = follower().judges(Found(status(0, "a:1", heard=False)), 10.1)
    assert lost.host_lost and lost.silent == set()
    assert follower().judges(Found(), 12.0).silent == {"a"}


def test_it_votes_only_once_its_host_is_lost_and_then_follows_whom_it_elected() -> None:
    ballot = Ballot(1000, "c", "c:1", 0, 3)
    _, refused = follower().votes(ballot, False, 10.1)
    assert not refused.granted and refused.why
    lost = follower().judges(Found(gone=True), 10.1)
    _, leaving = lost.votes(ballot, True, 10.2)
    assert leaving.why == "it leaves"
    after, answer = lost.votes(ballot, False, 10.2)
    assert answer.granted and after.address == "c:1" and after.host == MEMBERS[2]
    assert not after.host_lost, "the elected one has its time to begin"


@pytest.mark.parametrize(
    ("other", "lost", "led"),
    [
        (status(1000, "c:1"), False, True),
        (status(0, "c:1"), False, False),
        (status(1000, ""), False, False),
    ],
)
def test_it_goes_to_a_later_coordinator_and_to_no_other(
    other: AgentStatus, lost: bool, led: bool
) -> None:
    assert (follower().hears_of(other, 11.0).led > 0) is led


def test_a_newcomer_goes_to_a_coordinator_that_is_heard_not_to_where_one_was() -> None:
    new = Follower("d", 1.0)
    assert new.hears_of(status(0, "a:1", heard=False), 1.0).address == ""
    assert new.hears_of(status(0, "a:1"), 1.0).address == "a:1"


def test_the_first_host_leaves_its_coordinator_only_for_an_elected_one() -> None:
    first = Follower("a", 1.0, first_host=True)
    assert first.hears_of(status(0, "a:1"), 1.0) == first, "others may hear it before it does"
    assert first.hears_of(status(1, "old:1"), 1.0) == first
    led = first.hears_of(status(1000, "c:1"), 1.0)
    assert led.address == "c:1" and not led.hosts_by_right


def test_whoever_alone_took_part_in_an_election_comes_back_to_the_others() -> None:
    alone = follower().judges(Found(gone=True), 10.1)
    alone = replace(alone, voter=replace(alone.voter, sworn=3000, voted_for="b"), address="")
    assert alone.hears_of(status(1000, "c:1"), 11.0).address == "c:1"
    assert alone.hears_of(status(1000, "c:1"), 11.0).voter.sworn == 3000


def test_a_coordinator_serves_once_its_own_host_hears_it() -> None:
    elected = follower("c").hears_of(status(1000, "b:1"), 10.0)
    begins = status(1000, "b:1", hosts=True, heard=False)
    assert not elected.is_served_by(begins)
    assert elected.is_served_by(replace(begins, heard=True))
    assert not elected.is_served_by(status(1000, "b:1", heard=True)), "that follows another"
    assert not elected.is_served_by(status(0, "a:1", hosts=True)), "that is not its own"


def test_a_newcomer_whose_elected_host_is_gone_deposes_nobody_for_nothing() -> None:
    """None of both knows a round, so nobody could elect another in that one's place."""
    new = Follower("d", 1.0).hears_of(status(3000, "b:1"), 10.0)
    lost = new.judges(None, 14.0)
    assert lost.host_lost
    young = status(0, "a:1", hosts=True)
    assert lost.hears_of(replace(young, round=0), 14.1) == lost
    assert lost.hears_of(young, 14.1).address == "a:1"


def test_whoever_was_led_astray_comes_back_to_the_coordinator_of_its_own_term() -> None:
    elected = follower("c").hears_of(status(1000, "b:1"), 10.0)
    lost = elected.judges(None, 14.0)  # its host is silent
    astray = lost.hears_of(status(0, "a:1", hosts=True, heard=False), 14.1)
    assert astray.address == "a:1"
    heard = status(1000, "b:1", hosts=True)
    assert astray.hears_of(heard, 14.2).address == "a:1", "it has its time to begin"
    back = astray.judges(None, 18.0).hears_of(heard, 18.1)
    assert back.address == "b:1" and not back.host_lost


def test_an_elector_of_an_earlier_round_stands_too_after_those_of_the_newest() -> None:
    joint = Electorate(0, 4, (Group(MEMBERS), Group(MEMBERS[:1])))
    assert [turn(joint, name, ()) for name in "abcd"] == [0, 1, 2, None]


def test_what_it_hosted_is_forgotten_but_not_where_it_was_led_meanwhile() -> None:
    hosting = follower().hosts("b:1")
    assert hosting.hosts_no_more("b:1", 2000).address == ""
    led = hosting.hears_of(status(2000, "c:1"), 12.0)
    assert led.hosts_no_more("b:1", 2000).address == "c:1"


def test_peers_are_hosts_with_the_endpoints_port_or_their_own() -> None:
    assert read_peers("", 7) == ()
    assert read_peers("a, b:9 ,a,[fd00::1]:5,fd00::2", 7) == (
        ("a", 9),
        ("b", 11),
        ("fd00::1", 7),
        ("fd00::2", 9),
    )


@pytest.mark.parametrize("text", ["a:x", ":7", "a:0", "a:70000"])
def test_what_is_no_peer_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"VOLCANO_ELASTIC_PEERS: expected HOST"):
        read_peers(f"b,{text}", 7)
