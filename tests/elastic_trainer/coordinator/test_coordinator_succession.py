"""A coordinator makes no round that another side could make too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_trainer.coordinator.model import Gone, Lost, Phase
from elastic_trainer.protocol.message import (
    Dismissed,
    Electorate,
    Goodbye,
    Hello,
    Join,
    Leave,
    Member,
    Progress,
    Round,
    RoundOver,
    Taken,
)
from elastic_trainer.succession.electorate import electorate_of, voters

from tests.elastic_trainer.coordinator.world import Job


def joined(job: Job, *indexes: int, term: int = 0, known: Electorate | None = None) -> Job:
    for index in indexes:
        name = f"a{index}"
        hello = Hello(name, index, f"10.0.0.{index}", term=term, port=7, electorate=known)
        job.say(name, hello, Join(5000 + index))
    return job


def running(count: int, host: str = "a0") -> Job:
    job = joined(Job(min_nodes=1, max_nodes=8, host=host), *range(count))
    job.pass_time(0.5)
    assert job.state.round is not None
    for index in range(count):
        job.say(f"a{index}", Taken(job.state.round.round))
    job.link(*range(count))
    return job


def test_a_round_with_members_that_wait_for_worker_0_holds_no_elections() -> None:
    """Else the others would go on without them, once it is lost."""
    job = Job(min_nodes=1, max_nodes=8, host="a0")
    for index in range(3):
        hello = Hello(f"a{index}", index, "h", port=7 if index else 0)
        job.say(f"a{index}", hello, Join(5000 + index))
    job.pass_time(0.5)
    assert job.state.round is not None and len(job.state.round.members) == 3
    assert not any(member.port for member in job.state.round.members)
    assert not voters(electorate_of(job.state.round))


def lose(job: Job, *indexes: int) -> None:
    for index in indexes:
        job.feed(Lost(f"a{index}"))


def come_back(job: Job, *indexes: int) -> None:
    for index in indexes:
        job.say(f"a{index}", Join(5000 + index))
    job.pass_time(1.0)


def test_with_less_than_half_of_the_round_it_waits_and_says_for_whom() -> None:
    job = running(5)
    lose(job, 2, 3, 4)
    come_back(job, 0, 1)
    assert job.state.phase in (Phase.RESTARTING, Phase.FORMING)
    assert {member.agent for member in job.state.missing} == {"a2", "a3", "a4"}


def test_with_half_of_the_round_the_host_goes_on() -> None:
    job = running(4)
    lose(job, 2, 3)
    come_back(job, 0, 1)
    assert job.members() == ["a0", "a1"]


def test_members_that_are_proven_gone_are_not_waited_for() -> None:
    job = running(5)
    lose(job, 2, 3, 4)
    come_back(job, 0, 1)
    job.feed(Gone(frozenset({"a3"})))
    job.pass_time(0.5)
    assert job.members() == ["a0", "a1"]


def test_agents_that_said_goodbye_are_gone() -> None:
    job = running(3)
    job.say("a1", Goodbye())
    job.say("a2", Goodbye())
    assert job.heard["a2"][-1] == Dismissed("its goodbye was heard")
    come_back(job, 0)
    assert job.members() == ["a0"]


def test_half_is_not_enough_for_a_coordinator_that_did_not_make_the_round() -> None:
    known = running(2).state.electorate
    again = joined(Job(min_nodes=1, max_nodes=8, host="a0", term=1), 0, known=known)
    again.pass_time(60.0)
    assert again.members() == [] and [m.agent for m in again.state.missing] == ["a1"]
    joined(again, 1, known=known)
    again.pass_time(1.0)
    assert again.members() == ["a0", "a1"]


def test_a_coordinator_that_knows_no_round_waits_for_its_own_agent() -> None:
    job = joined(Job(min_nodes=1, max_nodes=8, host="a0"), 1)
    job.pass_time(5.0)
    assert job.members() == []
    joined(job, 0)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1"]


def test_an_elected_coordinator_ends_the_round_once_its_electors_are_back() -> None:
    old = running(3)
    running_round = old.state.round
    job = Job(min_nodes=1, max_nodes=8, host="a1", term=1000)
    job.state = replace(
        job.state,
        electorate=old.state.electorate,
        gone=frozenset({"a0"}),
        returning=frozenset({"a1", "a2"}),
    )
    for index in (1, 2):
        hello = Hello(
            f"a{index}",
            index,
            f"10.0.0.{index}",
            round=running_round,
            linked=True,
            recovers=True,
            term=1000,
            port=7,
            electorate=old.state.electorate,
        )
        job.say(hello.agent, hello)
    assert job.last("a1", RoundOver).reason == "worker 0 lost with the coordinator"
    for index in (1, 2):
        job.say(f"a{index}", Join(5000 + index, live=True))
    assert job.members() == ["a1", "a2"]
    assert job.state.round is not None and job.state.round.term == 1000


def elected(known: Electorate | None, gone: set[str]) -> Job:
    job = Job(min_nodes=1, max_nodes=8, host="a1", term=1000)
    voted = frozenset({"a1", "a2"})
    job.state = replace(job.state, electorate=known, gone=frozenset(gone), returning=voted)
    return joined(job, 1, 2, term=1000, known=known)


def test_an_elected_coordinator_waits_for_nobody_once_all_who_live_are_back() -> None:
    known = running(3).state.electorate
    assert elected(known, gone={"a0"}).members() == ["a1", "a2"]


def test_an_elected_coordinator_gives_those_who_may_live_a_moment_to_come_back() -> None:
    known = running(4).state.electorate
    late = elected(known, gone={"a0"})
    assert late.members() == []
    assert joined(late, 3, term=1000, known=known).members() == ["a1", "a2", "a3"]
    silent = elected(known, gone={"a0"})
    silent.pass_time(0.5)
    assert silent.members() == ["a1", "a2"]


def test_where_few_of_the_round_are_in_the_next_the_others_take_note_of_it_first() -> None:
    job = running(3)
    for index in (1, 2):  # their workers fail, and are not back yet when others' wait is over
        job.say(f"a{index}", Join(5000 + index))
    for index in (1, 2):
        agent = job.state.agents[f"a{index}"]
        job.state = replace(
            job.state, agents=job.state.agents.with_agent(replace(agent, retry_at=1e9))
        )
    job.say("a0", Join(5000))
    job.pass_time(60.0)
    assert job.members() == []
    told = job.last("a1", Electorate)
    assert [m.agent for m in told.groups[-1].members] == ["a0"]
    job.say("a0", Taken(told.round))
    job.say("a1", Taken(told.round))
    job.pass_time(0.1)
    assert job.members() == ["a0"] and job.state.last_round == told.round + 1


def train(job: Job) -> None:
    assert job.state.round is not None
    job.say(job.members()[0], Progress(job.state.round.round, 1))


def is_contested(job: Job) -> bool:
    assert job.state.round is not None and job.members()
    return job.state.round.contested


def test_a_round_is_contested_where_those_taken_for_gone_could_have_gone_on_without_it() -> None:
    job = running(5)
    train(job)
    lose(job, 2, 3, 4)
    job.feed(Gone(frozenset({"a2", "a3", "a4"})))
    come_back(job, 0, 1)
    assert job.members() == ["a0", "a1"] and is_contested(job)


def test_a_round_of_most_of_the_last_one_is_not_contested() -> None:
    job = running(5)
    train(job)
    lose(job, 3, 4)
    job.feed(Gone(frozenset({"a3", "a4"})))
    come_back(job, 0, 1, 2)
    assert job.members() == ["a0", "a1", "a2"] and not is_contested(job)


def test_who_left_in_order_contests_nothing() -> None:
    job = running(4, host="a3")
    train(job)
    for index in (0, 1):
        job.say(f"a{index}", Leave())
        lose(job, index)
    job.say("a2", Goodbye())
    come_back(job, 3)
    assert job.members() == ["a3"] and not is_contested(job)


def test_rounds_are_contested_until_one_has_made_a_step_whichever_coordinator_makes_them() -> None:
    job = running(3)
    train(job)
    lose(job, 1, 2)
    job.feed(Gone(frozenset({"a1", "a2"})))
    come_back(job, 0)
    assert job.members() == ["a0"] and is_contested(job)
    known = job.state.electorate
    job.say("a0", Join(5000, live=True))  # it broke before its members had asked
    job.pass_time(1.0)
    assert job.members() == ["a0"] and is_contested(job)
    again = joined(Job(min_nodes=1, max_nodes=8, host="a0", term=1), 0, known=known)
    again.feed(Gone(frozenset({"a1", "a2"})))
    again.pass_time(60.0)
    assert again.members() == ["a0"] and is_contested(again)
    train(again)
    again.say("a0", Taken(again.state.last_round))
    again.say("a0", Join(5000, live=True))
    again.pass_time(1.0)
    assert again.members() == ["a0"] and not is_contested(again)


def test_a_round_without_those_who_trained_last_is_contested() -> None:
    job = running(3)
    train(job)
    lose(job, 0)
    come_back(job, 1, 2)
    train(job)
    assert job.members() == ["a1", "a2"]
    for index in (1, 2):
        job.say(f"a{index}", Taken(job.state.last_round))
    joined(job, 0)
    for index in (1, 2):  # their workers have failed, and are not back
        job.say(f"a{index}", Join(5000 + index))
        agent = job.state.agents[f"a{index}"]
        job.state = replace(
            job.state, agents=job.state.agents.with_agent(replace(agent, retry_at=1e9))
        )
    job.pass_time(60.0)
    for index in (0, 1, 2):
        job.say(f"a{index}", Taken(job.state.last_round))
    job.pass_time(0.1)
    assert job.members() == ["a0"] and is_contested(job)


@pytest.mark.parametrize("first", ["a0", "a2"])
def test_of_two_rounds_with_one_number_that_of_the_later_term_is_taken_over(first: str) -> None:
    """Coordinator 0 was lost as it told a0 and a2 of round 3, and only a2 heard; then a0 was
    elected without a2, and made a round 3 of its own. It is elected again, and both come."""
    job = Job(min_nodes=1, max_nodes=3, term=4813, host="a0")
    theirs = {
        "a0": Round(3, (Member("a0", 0, "a0", 1),), term=2813),
        "a2": Round(3, (Member("a0", 0, "a0", 1), Member("a2", 2, "a2", 1)), term=0),
    }
    for name in sorted(theirs, key=lambda name: name != first):
        running = theirs[name]
        job.say(
            name,
            Hello(
                agent=name,
                pod_index=int(name[1]),
                last_round=3,
                round=running,
                linked=True,
                recovers=True,
                port=1,
                electorate=electorate_of(running),
            ),
        )
    assert job.state.round == theirs["a0"]
    assert [agent.agent for agent in job.state.agents.values() if agent.attached] == ["a0"]
    assert job.last("a2", RoundOver).round == 3
    assert all(not isinstance(one, RoundOver) for one in job.heard.get("a0", ()))
