"""A job whose range is edited while it runs: its rounds follow, and none is ended for it."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.coordinator.model import Lost, NewRange, Phase
from elastic_trainer.protocol.message import (
    FenceAsk,
    Fenced,
    FenceReply,
    Join,
    Leave,
    Linked,
    Standby,
)

from tests.elastic_trainer import torchrun_job
from tests.elastic_trainer.agent.test_rendezvous import SCRIPT
from tests.elastic_trainer.coordinator.world import Job


def fenced(job: Job, *indexes: int) -> None:
    """The members stop at a common step and ask for the next round."""
    fence = job.last(f"a{indexes[0]}", FenceAsk).fence
    for index in indexes:
        job.say(f"a{index}", FenceReply(fence, 3))
    for index in indexes:
        job.say(f"a{index}", Fenced(fence, 4))


def test_who_waits_is_let_in_at_once_when_the_max_rises() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    job.join(2, 3, 4)
    job.pass_time(5.0)
    assert job.state.phase is Phase.RUNNING
    job.feed(NewRange(2, 4))
    assert job.state.phase is Phase.FENCING
    fenced(job, 0, 1)
    job.join(0, 1)
    assert job.members() == ["a0", "a1", "a2", "a3"], "and the last stands by"


def test_who_stands_by_with_running_workers_is_let_in_too() -> None:
    job = Job(min_nodes=1, max_nodes=1).running(0)
    job.say("a0", Linked(1, recovers=True, last_run=1))
    job.join(1)
    job.last("a1", Standby)
    job.say("a1", Join(5001, live=True))
    job.pass_time(1.0)
    assert job.state.phase is Phase.RUNNING
    job.feed(NewRange(1, 2))
    fenced(job, 0)
    job.say("a0", Join(5000, live=True))
    assert job.members() == ["a0", "a1"]


def test_too_few_for_the_old_min_train_once_it_falls() -> None:
    job = Job(min_nodes=2, max_nodes=4).running(0, 1)
    job.feed(Lost("a1"))
    job.join(0)
    job.pass_time(60.0)
    assert job.state.phase is Phase.FORMING
    job.feed(NewRange(1, 4))
    job.pass_time(0.4)
    assert job.members() == ["a0"] and job.state.phase is Phase.RUNNING


def test_the_survivor_of_a_leave_below_the_old_min_goes_on() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    job.feed(NewRange(1, 2))
    job.say("a1", Leave())
    fenced(job, 0, 1)
    job.join(0)
    assert job.members() == ["a0"]


def test_a_lower_max_throws_nobody_out_of_the_running_round() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2, 3)
    job.feed(NewRange(1, 2))
    job.join(4)
    job.pass_time(60.0)
    assert job.state.phase is Phase.RUNNING and len(job.members()) == 4
    assert not any(job.heard.get(f"a{i}") for i in range(4)), "they hear nothing of it"
    # The operator has removed the pods that are too many: one round without both.
    job.say("a1", Leave())
    job.say("a3", Leave())
    fenced(job, 0, 1, 2, 3)
    job.join(0, 2)
    assert job.members() == ["a0", "a2"] and job.state.last_round == 2


def test_a_min_above_the_running_size_holds_for_later_rounds_only() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1)
    job.feed(NewRange(4, 4))
    job.join(2)
    job.pass_time(60.0)
    assert job.state.phase is Phase.RUNNING and job.members() == ["a0", "a1"]
    job.feed(Lost("a1"))
    job.join(0)
    job.pass_time(60.0)
    assert job.state.phase is Phase.FORMING, "two are fewer than four"
    job.join(1, 3)
    job.pass_time(0.4)
    assert len(job.members()) == 4


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2), (1, 1)])
def test_a_range_without_room_for_a_round_changes_nothing(low: int, high: int) -> None:
    job = Job(min_nodes=2, max_nodes=4, node_unit=2).running(0, 1)
    before = job.state
    with pytest.raises(ValueError, match=r"found min|no multiple of node unit 2"):
        job.feed(NewRange(low, high))
    assert job.state == before


def test_a_range_comes_before_any_agent_and_after_the_end() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.feed(NewRange(1, 3))
    job.join(0, 1, 2)
    job.pass_time(0.5)
    assert len(job.members()) == 3


# ---- real agents


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[torchrun_job.Job]:
    job = torchrun_job.Job(tmp_path, SCRIPT, nodes="2:2")
    yield job
    job.close()


def put_range(job: torchrun_job.Job, low: int, high: int) -> Any:
    url, body = f"http://127.0.0.1:{job.port + 1}/range", json.dumps({"min": low, "max": high})
    request = urllib.request.Request(url, body.encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.process
def test_torchrun_follows_the_range_above_and_below_what_it_was_started_with(
    agents: torchrun_job.Job,
) -> None:
    job = agents
    job.start(0, 1, 2)
    job.stepping(world=2)
    told = job.until("the third waits", lambda told: bool(told.get("waiting")))
    assert told["range"] == {"min": 2, "max": 2}
    assert put_range(job, 2, 3) == {"min": 2, "max": 3}
    three = job.stepping(world=3, after_round=told["round"])
    assert three["rounds"][-1]["first_step"] == three["rounds"][-2]["last_step"] + 1

    put_range(job, 1, 3)
    for index in (1, 2):
        job.agents[index].send_signal(signal.SIGTERM)
        assert job.wait(index) == 0, job.logs()
    alone = job.stepping(world=1, after_round=three["round"])
    # The round of two, which one more was told to leave at once, may have made no step.
    made = [one for one in alone["rounds"] if one["last_step"] is not None]
    assert made[-1]["first_step"] == made[-2]["last_step"] + 1
    (job.folder / "enough").touch()
    assert job.wait(0) == 0, job.logs()
