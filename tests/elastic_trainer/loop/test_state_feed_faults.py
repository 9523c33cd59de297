"""No state is believed but what was trained, whoever dies or leaves while a newcomer follows; and
nobody waits for who doesn't come near."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.loop.state_feed import FOLLOW_VARIABLE

from tests.elastic_trainer.loop.test_state_feed import SCRIPT, end_well, followed
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

ENVIRONMENT = {FOLLOW_VARIABLE: "0"}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def start_slow(job: Job, index: int) -> int:
    """Start a pod that takes long for each step that it makes again; return the process that
    follows the others."""
    (job.folder / f"slow-{index}").touch()
    job.start(index, environment=ENVIRONMENT)
    path = job.folder / f"following-{index}"
    job.until(f"pod {index} follows", lambda _: path.exists() and path.read_text() != "")
    return int(path.read_text())


def hurry(job: Job, index: int) -> None:
    """Have a slow pod take no longer than others."""
    (job.folder / f"slow-{index}").unlink()


def test_a_newcomer_that_dies_as_it_follows_costs_the_others_nothing(job: Job) -> None:
    job.start(0, 1, environment=ENVIRONMENT)
    told = job.stepping(2)
    following = start_slow(job, 2)
    hurry(job, 2)
    os.kill(following, signal.SIGKILL)
    job.stepping(3, after_round=told["round"])
    end_well(job, 0, 1, 2)


def test_the_state_that_a_newcomer_followed_is_lost_with_who_trained_it(job: Job) -> None:
    job.start(0, environment=ENVIRONMENT)
    told = job.stepping(1)
    start_slow(job, 1)
    os.kill(told["pids"]["0"][0], signal.SIGKILL)
    hurry(job, 1)
    job.stepping(2, after_round=told["round"])
    end_well(job, 0, 1)


def test_a_newcomer_that_never_comes_near_joins_with_the_whole_state(job: Job) -> None:
    job.start(0, 1, environment=ENVIRONMENT)
    told = job.stepping(2)
    start_slow(job, 2)
    job.until("pod 0 has given it up", lambda _: "it has not come near" in job.logs())
    hurry(job, 2)  # with the steps that were sent before
    job.stepping(3, after_round=told["round"])
    assert followed(job, 2) == 0, job.logs()
    end_well(job, 0, 1, 2)


def test_one_leaves_while_a_newcomer_follows_the_other(job: Job) -> None:
    job.start(0, 1, environment=ENVIRONMENT)
    told = job.stepping(2)
    start_slow(job, 2)  # it follows pod 0
    job.agents[1].send_signal(signal.SIGTERM)
    assert job.wait(1) == 0, job.logs()
    hurry(job, 2)
    job.until("pods 0 and 2 train", lambda told: sorted(told["pids"]) == ["0", "2"])
    job.stepping(2, after_round=told["round"])
    end_well(job, 0, 2)


def test_a_round_breaks_while_a_newcomer_follows(job: Job) -> None:
    job.start(0, 1, environment=ENVIRONMENT)
    told = job.stepping(2)
    start_slow(job, 2)  # it follows pod 0
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    hurry(job, 2)
    job.stepping(3, after_round=told["round"])
    end_well(job, 0, 1, 2)


def test_two_newcomers_of_which_one_is_slow_both_join(job: Job) -> None:
    job.start(0, environment=ENVIRONMENT)
    told = job.stepping(1)
    start_slow(job, 2)
    job.start(1, environment=ENVIRONMENT)
    job.until("pod 1 trains with pod 0", lambda told: {"0", "1"} <= told["pids"].keys())
    hurry(job, 2)
    job.stepping(3, after_round=told["round"])
    end_well(job, 0, 1, 2)
