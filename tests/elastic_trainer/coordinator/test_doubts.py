"""A worker's error is its script's own once all members have said since that their workers are
there; word of a lost peer, however late it comes, comes before."""

from __future__ import annotations

import pytest
from elastic_trainer.coordinator.model import Lost, Phase
from elastic_trainer.protocol.message import (
    AskStanding,
    Doubted,
    Finished,
    Hello,
    RoundOver,
    RoundStands,
    Standing,
    WorkersFailed,
    WorkersSucceeded,
)

from tests.elastic_trainer.coordinator.world import Job


@pytest.fixture
def job() -> Job:
    return Job(min_nodes=1, max_nodes=3).running(0, 1, 2)


def answers(job: Job) -> dict[str, list[int]]:
    """Return the doubts of which agents were told that the round stands."""
    told = {
        name: [one.doubt for one in heard if isinstance(one, RoundStands)]
        for name, heard in job.heard.items()
    }
    return {name: doubts for name, doubts in told.items() if doubts}


def asked(job: Job) -> list[int]:
    """Return how often each agent was asked."""
    heard = (job.heard.get(f"a{index}", []) for index in range(3))
    return [sum(isinstance(one, AskStanding) for one in of_agent) for of_agent in heard]


def test_who_doubts_is_told_that_the_round_stands_once_all_members_have_said_so(job: Job) -> None:
    job.say("a0", Doubted(1, 7))
    job.pass_time(0.2)
    for index in range(3):
        assert job.last(f"a{index}", AskStanding) == AskStanding(1, 1)
        assert answers(job) == {}
        job.say(f"a{index}", Standing(1, 1))
    assert answers(job) == {"a0": [7]} and job.state.phase is Phase.RUNNING


@pytest.mark.parametrize("loss", ["workers failed", "silent"])
def test_who_doubts_hears_of_a_loss_and_of_nothing_before(job: Job, loss: str) -> None:
    job.say("a0", Doubted(1, 1))
    job.pass_time(0.2)
    job.say("a0", Standing(1, 1))
    job.say("a1", Standing(1, 1))
    job.pass_time(60.0)
    assert answers(job) == {} and job.state.phase is Phase.RUNNING
    if loss == "silent":
        job.feed(Lost("a2", "silent"))
    else:
        job.say("a2", WorkersFailed(1))
    assert job.last("a0", RoundOver).round == 1
    job.say("a2", Standing(1, 1))
    assert answers(job) == {}


def test_what_was_said_before_a_doubt_does_not_answer_it(job: Job) -> None:
    job.say("a0", Doubted(1, 1))
    job.pass_time(0.2)
    job.say("a1", Standing(1, 1))
    job.say("a0", Doubted(1, 2), Standing(1, 1))
    job.say("a1", Doubted(1, 1))
    job.say("a2", Standing(1, 1))
    assert answers(job) == {"a0": [1]}
    job.pass_time(0.2)
    assert [job.last(f"a{index}", AskStanding).question for index in range(3)] == [2, 2, 2]
    job.say("a0", Standing(1, 1))  # to the first question once more
    for index in range(3):
        job.say(f"a{index}", Standing(1, 2))
    assert answers(job) == {"a0": [1, 2], "a1": [1]}
    job.pass_time(1.0)
    assert asked(job) == [2, 2, 2], "nobody doubts any more"


def test_nobody_is_asked_where_word_of_the_loss_comes_with_the_doubt(job: Job) -> None:
    job.say("a0", Doubted(1, 1))
    job.say("a1", WorkersFailed(1))
    job.pass_time(1.0)
    assert job.last("a0", RoundOver).round == 1 and asked(job) == [0, 0, 0]


def test_where_all_doubt_at_once_they_are_asked_once(job: Job) -> None:
    for index in range(3):
        job.say(f"a{index}", Doubted(1, 1))
    job.pass_time(1.0)
    for index in range(3):
        job.say(f"a{index}", Standing(1, 1))
    job.pass_time(1.0)
    assert asked(job) == [1, 1, 1] and answers(job) == {"a0": [1], "a1": [1], "a2": [1]}


def test_doubts_of_a_round_that_is_over_are_forgotten(job: Job) -> None:
    job.say("a0", Doubted(1, 1))
    job.say("a1", WorkersFailed(1))
    job.heard.clear()
    job.say("a0", Doubted(1, 2))
    job.join(0, 1, 2)
    job.pass_time(0.5)
    job.link(0, 1, 2)
    assert job.state.phase is Phase.RUNNING
    job.pass_time(1.0)
    assert asked(job) == [0, 0, 0]


def test_a_member_whose_workers_have_succeeded_is_not_waited_for(job: Job) -> None:
    job.say("a2", Finished(1), WorkersSucceeded(1))
    job.say("a0", Doubted(1, 1))
    job.pass_time(0.2)
    job.feed(Lost("a2"))  # its stream broke, and the question is lost
    again = Hello("a2", 2, "h", round=job.state.round, finished=True, succeeded=True)
    job.say("a2", again)
    for name in ("a0", "a1"):
        assert answers(job) == {}
        job.say(name, Standing(1, 1))
    assert answers(job) == {"a0": [1]} and job.state.phase is Phase.COMPLETING
