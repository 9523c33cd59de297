"""How long a node is left out of rounds."""

from __future__ import annotations

import pytest
from elastic_trainer.coordinator.exclusion import EXCLUDE_VARIABLE, exclude_seconds
from elastic_trainer.coordinator.model import FaultyNodes, Lost
from elastic_trainer.protocol.message import CheckNode, Exclusion, Hello, Join, Round

from tests.elastic_trainer.coordinator.world import Job


def without_node_2(**settings: float) -> Job:
    job = Job(min_nodes=2, max_nodes=3, **settings)
    job.running(0, 1, 2)
    job.feed(FaultyNodes({"worker 2": "wrong"}))
    for index in (0, 1, 2):
        job.join(index)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1"]
    return job


def come_back(job: Job, *indexes: int) -> None:
    job.pass_time(1.0)
    for index in indexes:
        job.join(index)
    job.pass_time(1.0)


def test_a_node_whose_time_is_over_trains_again() -> None:
    job = without_node_2(exclude_seconds=30.0)
    job.link(0, 1)
    job.pass_time(25.0)
    assert job.state.excluded
    job.pass_time(10.0)
    assert not job.state.excluded
    come_back(job, 0, 1)
    assert job.members() == ["a0", "a1", "a2"]


def test_without_enough_others_for_long_a_node_that_may_be_broken_beats_none() -> None:
    """Else the job waited for good, though the operator gave that node its pods again."""
    job = without_node_2()
    job.feed(Lost("a1"))
    come_back(job, 0)
    job.pass_time(50.0)
    assert job.members() == []
    job.pass_time(15.0)
    assert job.members() == ["a0", "a2"]
    assert not job.state.excluded


def test_others_that_come_in_time_go_before_it() -> None:
    job = without_node_2()
    job.feed(Lost("a1"))
    come_back(job, 0)
    job.pass_time(50.0)
    come_back(job, 1)
    assert job.members() == ["a0", "a1"]
    job.pass_time(100.0)
    assert job.state.excluded == {"worker 2": "wrong"}


def test_a_node_that_may_train_again_is_checked_first() -> None:
    job = without_node_2(exclude_seconds=30.0, recheck_seconds=60.0)
    job.link(0, 1)
    job.pass_time(35.0)
    job.heard.clear()
    come_back(job, 0, 1)
    assert job.members() == []
    assert all(CheckNode() in job.heard[name] for name in ("a0", "a1", "a2"))


def test_an_elected_coordinator_knows_who_was_left_out() -> None:
    """Agents tell it of their round: else a device that computes wrongly trained again at once."""
    before = without_node_2()
    told = before.last("a0", Round)
    assert told.excluded == (Exclusion("worker 2", "wrong"),)
    job = Job(min_nodes=2, max_nodes=3, exclude_seconds=30.0, term=1)
    for index in (0, 1):
        hello = Hello(agent=f"a{index}", pod_index=index, round=told, linked=True)
        job.say(f"a{index}", hello)
    hello = Hello(agent="a2", pod_index=2)
    job.say("a2", hello, Join(5002))
    job.pass_time(25.0)
    assert job.members() == ["a0", "a1"]
    assert job.state.excluded == {"worker 2": "wrong"}
    job.pass_time(10.0)
    come_back(job, 0, 1)
    assert job.members() == ["a0", "a1", "a2"]


def test_the_time_is_settable_and_nonsense_is_refused() -> None:
    assert exclude_seconds({}) == 1800.0
    assert exclude_seconds({EXCLUDE_VARIABLE: "0"}) == 0.0
    for text in ("soon", "-1", "nan"):
        with pytest.raises(ValueError, match=EXCLUDE_VARIABLE):
            exclude_seconds({EXCLUDE_VARIABLE: text})
