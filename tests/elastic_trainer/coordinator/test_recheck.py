"""A node check after a failure of devices, before the node's next round."""

from __future__ import annotations

import pytest
from elastic_trainer.coordinator.model import FaultyNodes, Lost, Phase
from elastic_trainer.coordinator.recheck import RECHECK_VARIABLE, recheck_seconds
from elastic_trainer.protocol.message import CheckNode, Failed, Join, WorkersFailed

from tests.elastic_trainer.coordinator.world import Job

DEVICE = "GPU hardware"


def training(seconds: float = 60.0, count: int = 4) -> Job:
    job = Job(min_nodes=1, max_nodes=8, recheck_seconds=seconds)
    return job.running(*range(count))


def fail(job: Job, index: int, node_fault: str = DEVICE) -> None:
    """A worker fails, and all workers are started anew."""
    assert job.state.round is not None
    number, members = job.state.round.round, job.members()
    failed = Failed(number, index, code=1, message="an error", node_fault=node_fault)
    job.say(f"a{index}", failed, WorkersFailed(number))
    for name in members:
        job.say(name, Join(1))
    job.pass_time(0.1)


def asked(job: Job) -> list[str]:
    told = (name for name, heard in job.heard.items() if CheckNode() in heard)
    return sorted(told)


def test_the_next_round_waits_for_a_check_of_all_who_would_be_in_it() -> None:
    job = training()
    fail(job, 2)
    assert asked(job) == ["a0", "a1", "a2", "a3"]
    job.pass_time(10.0)
    assert job.members() == []
    job.feed(FaultyNodes({"worker 2": "wrong"}))
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1", "a3"]
    assert job.state.excluded == {"worker 2": "wrong"}


def test_a_node_that_the_check_finds_sound_is_in_the_next_round_and_not_checked_again() -> None:
    job = training()
    fail(job, 2)
    job.feed(FaultyNodes({}))
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1", "a2", "a3"]
    job.link(0, 1, 2, 3)
    job.heard.clear()
    fail(job, 1, node_fault="")
    assert asked(job) == []
    assert job.members() == ["a0", "a1", "a2", "a3"]


def test_others_go_on_at_once_and_are_checked_with_the_node_as_it_comes_back() -> None:
    job = training()
    job.say("a2", Failed(1, 2, code=1, message="an error", node_fault=DEVICE))
    job.feed(Lost("a2"))
    for index in (0, 1, 3):
        job.say(f"a{index}", Join(1))
    job.pass_time(0.1)
    assert job.members() == ["a0", "a1", "a3"]
    assert asked(job) == []
    job.link(0, 1, 3)
    job.join(2)
    fail(job, 0, node_fault="")
    assert asked(job) == ["a0", "a1", "a2", "a3"]


def test_a_check_that_does_not_end_holds_up_the_round_no_longer_than_it_may() -> None:
    job = training(seconds=5.0)
    fail(job, 2)
    job.pass_time(4.0)
    assert job.members() == []
    job.pass_time(2.0)
    assert job.members() == ["a0", "a1", "a2", "a3"]


def test_a_check_ends_with_those_who_could_take_part() -> None:
    job = training(count=2)
    fail(job, 1)
    assert asked(job) == ["a0", "a1"]
    job.feed(Lost("a1"))
    job.pass_time(1.0)
    assert job.members() == ["a0"]


def test_nobody_is_checked_alone_or_where_the_job_wants_none() -> None:
    job = training(count=1)
    fail(job, 0)
    assert (asked(job), job.members()) == ([], ["a0"])
    job = training(seconds=0.0)
    fail(job, 1)
    assert (asked(job), job.members()) == ([], ["a0", "a1", "a2", "a3"])


def test_a_failure_that_a_new_coordinator_is_told_of_is_past_once_rounds_were_made_since() -> None:
    job = Job(min_nodes=1, max_nodes=8, recheck_seconds=60.0)
    job.state = training().state
    job.say("a1", Failed(1, 1, code=1, node_fault=DEVICE))
    assert job.state.suspects == {"worker 1"}
    later = Job(min_nodes=1, max_nodes=8, recheck_seconds=60.0)
    later.running(0, 1)
    for _ in range(2):
        fail(later, 0, node_fault="")
        later.link(0, 1)
    later.say("a1", Failed(1, 1, code=1, node_fault=DEVICE))
    assert later.state.suspects == frozenset()
    assert later.state.phase is Phase.RUNNING


def test_the_time_is_settable_and_nonsense_is_refused() -> None:
    assert recheck_seconds({}) == 120.0
    assert recheck_seconds({RECHECK_VARIABLE: "0"}) == 0.0
    for text in ("soon", "-1", "inf", "nan"):
        with pytest.raises(ValueError, match=RECHECK_VARIABLE):
            recheck_seconds({RECHECK_VARIABLE: text})
