"""Newcomers, and who was left out of the newest round, cost nobody what that round trained."""

from __future__ import annotations

import pytest
from elastic_trainer.coordinator.model import Lost
from elastic_trainer.protocol.message import FenceStop, Hello, Join, Leave, WorkersFailed

from tests.elastic_trainer.coordinator.test_leavers import LoopJob, ShardedJob


@pytest.mark.parametrize("kind", [LoopJob, ShardedJob])
@pytest.mark.parametrize("breaks", [False, True])
def test_newcomers_take_no_place_of_who_goes_on_with_the_state(
    kind: type[LoopJob], breaks: bool
) -> None:
    """Of whichever order they are: the state would stay behind with it."""
    job = kind(min_nodes=1, max_nodes=2).training(2, 3)
    job.join(0, 1)
    job.back(0, 1)
    if breaks:
        job.say("a3", WorkersFailed(1))
    else:
        job.say("a3", Leave())
        job.fence(2, 3)
        assert not job.last("a2", FenceStop).displaced
    job.back(2)
    assert job.members() == ["a0", "a2"] and not job.stepless


def test_one_that_had_no_place_in_the_newest_round_does_not_have_its_state() -> None:
    job = LoopJob(min_nodes=2, max_nodes=6, node_unit=2).training(0, 1, 2, 3)
    job.say("a3", WorkersFailed(1))
    job.back(0, 1, 2)
    assert job.members() == ["a0", "a1"]
    job.linking(0, 1)
    job.feed(Lost("a1"))
    job.say("a0", Leave())
    assert not job.dismissed(0)
    job.back(0)
    assert job.members() == ["a0", "a2"]
    job.linking(0, 2)
    job.fence(0, 2)
    assert job.dismissed(0)


def test_a_last_round_waits_for_nobody_with_the_state_of_an_earlier_one() -> None:
    job = LoopJob(min_nodes=2, max_nodes=6, node_unit=2).training(0, 1, 2, 3)
    job.say("a3", WorkersFailed(1))
    job.back(0, 1)
    job.pass_time(60.0)  # worker 2 doesn't come out of its round
    assert job.members() == ["a0", "a1"]
    job.linking(0, 1)
    job.feed(Lost("a1"))
    job.say("a0", Leave())
    job.back(0)
    job.pass_time(20.0)
    assert job.members() == ["a0"] and job.stepless


def test_a_new_coordinator_knows_whose_state_is_an_earlier_rounds() -> None:
    for last in (4, 5):
        job = LoopJob(min_nodes=2, max_nodes=4)
        for index, newest in ((0, 5), (1, last)):
            hello = Hello(f"a{index}", index, f"10.0.0.{index}", last_round=newest, holds=True)
            job.say(f"a{index}", hello, Join(5000 + index, live=True, round=newest))
        job.say("a0", Leave())
        assert job.dismissed(0) is (last == 5)
