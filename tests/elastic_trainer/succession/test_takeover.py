"""The agent that hosts the coordinator is lost: real torchrun agents, each with its own address."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer.agent.test_rendezvous import SCRIPT
from tests.elastic_trainer.loop.test_loop import SCRIPT as LOOP
from tests.elastic_trainer.loop.test_loop import pids, sound
from tests.elastic_trainer.torchrun_job import Job, children

pytestmark = pytest.mark.process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def test_the_survivors_go_on_when_the_agent_that_hosts_the_coordinator_is_killed(job: Job) -> None:
    job.start(0, 1, 2, restarts=0)
    told = job.stepping(world=3)
    assert told["term"] == 0 and told["host"] == 0
    os.killpg(job.agents[0].pid, signal.SIGKILL)
    on = job.stepping(world=2, after_round=told["round"])
    assert on["term"] >= 1000 and on["host"] in (1, 2)
    assert on["ranks"] == {"1": 0, "2": 1}


def test_one_after_the_other_may_be_killed_and_the_last_goes_on_alone(job: Job) -> None:
    job.start(0, 1, 2, restarts=0)
    told = job.stepping(world=3)
    os.killpg(job.agents[0].pid, signal.SIGKILL)
    two = job.stepping(world=2, after_round=told["round"])
    os.killpg(job.agents[1].pid, signal.SIGKILL)
    one = job.stepping(world=1, after_round=two["round"])
    assert one["term"] >= 1000 and one["ranks"] == {"2": 0}


def test_a_worker_0_that_is_made_anew_joins_the_coordinator_that_took_over(job: Job) -> None:
    job.start(0, 1, restarts=0)
    told = job.stepping(world=2)
    os.killpg(job.agents[0].pid, signal.SIGKILL)
    alone = job.stepping(world=1, after_round=told["round"])
    job.start(0, restarts=0)
    both = job.stepping(world=2, after_round=alone["round"])
    assert both["term"] >= 1000 and both["host"] == 1
    assert both["ranks"] == {"0": 0, "1": 1}


def test_a_frozen_host_is_replaced_and_comes_back_as_a_newcomer(job: Job) -> None:
    job.start(0, 1, 2)
    told = job.stepping(world=3)
    frozen = [job.agents[0].pid, *children(job.agents[0].pid).values()]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    two = job.stepping(world=2, after_round=told["round"])
    assert two["term"] >= 1000 and two["host"] in (1, 2)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    three = job.stepping(world=3, after_round=two["round"])
    assert three["term"] >= two["term"] and three["ranks"] == {"0": 0, "1": 1, "2": 2}


def test_a_coordinator_that_dies_alone_is_started_again_by_its_own_agent(job: Job) -> None:
    # However slowly it starts again, its agent is not taken for lost.
    job.start(0, 1, environment={"VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT": "120"})
    told = job.stepping(world=2)
    os.kill(children(job.agents[0].pid)["coordinator"], signal.SIGKILL)
    again = job.until("the coordinator is back", lambda now: now["term"] == 1)
    again = job.stepping(world=2)
    assert again["round"] == told["round"] and again["pids"] == told["pids"]
    assert again["host"] == 0


def test_who_leaves_while_the_coordinator_is_started_again_is_not_waited_for(job: Job) -> None:
    job.start(0, 1)
    told = job.stepping(world=2)
    own, other = children(job.agents[0].pid), children(job.agents[1].pid)
    os.kill(own["coordinator"], signal.SIGKILL)
    # Between two rounds there is nothing that a leaver would finish first.
    workers = [pid for name, pid in other.items() if name.startswith("ve-worker")]
    os.kill(workers[0], signal.SIGKILL)
    time.sleep(0.2)
    os.kill(job.agents[1].pid, signal.SIGTERM)
    on = job.stepping(world=1, after_round=told["round"])
    assert on["host"] == 0 and on["ranks"] == {"0": 0}
    assert job.wait(1) == 0


def test_no_sample_is_lost_or_repeated_when_hosts_die_freeze_and_come_back(tmp_path: Path) -> None:
    job = Job(tmp_path, LOOP)
    try:
        job.start(0, 1, 2)
        told = job.stepping(3)
        first = pids(told)
        os.killpg(job.agents[0].pid, signal.SIGKILL)
        two = job.stepping(2, after_round=told["round"])
        assert pids(two).items() <= first.items(), "survivors go on in their processes"
        assert two["rounds"][-1]["first_step"] >= told["step"]
        job.start(0)
        three = job.stepping(3, after_round=two["round"])

        host = three["host"]
        frozen = [job.agents[host].pid, *children(job.agents[host].pid).values()]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        others = job.stepping(2, after_round=three["round"])
        assert others["host"] != host
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        job.stepping(3, after_round=others["round"])
        (job.folder / "enough").touch()
        assert [job.wait(index) for index in (0, 1, 2)] == [0, 0, 0], job.logs()
        assert sound(job), job.logs()
    finally:
        job.close()
