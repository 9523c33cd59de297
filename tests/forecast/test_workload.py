"""Recorded jobs are simulated again with the work that they did, a GPU a worker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.forecast.workload import nodes, workload
from volcano_elastic.simulator.config import SimulationConfig
from volcano_elastic.simulator.simulation import simulate

DAY = timedelta(days=1)
BEGIN = NOW - DAY


def test_a_job_comes_when_it_came_with_the_work_that_it_did() -> None:
    two = replace(past_job("a", -80_000, -70_000, least=2, most=4), each=2000, asked=3)
    (job,) = workload([two], BEGIN, NOW, 16)
    assert (job.submit, job.min, job.gpus, job.max, job.unit) == (6400, 4, 6, 8, 2)
    assert job.work / job.curve[4] == pytest.approx(10_000)
    (run,) = simulate([replace(job, max=4, gpus=4)], SimulationConfig(2, 8), None).runs
    assert run.finish - run.start == pytest.approx(10_000, abs=1)


def test_what_was_done_before_is_no_part_of_it() -> None:
    long = past_job("a", -2 * 86_400, -43_200)
    (job,) = workload([long], BEGIN, NOW, 8)
    assert (job.submit, job.work) == (0, pytest.approx(43_200))
    (running,) = workload([past_job("b", -3600, None)], BEGIN, NOW, 8)
    assert running.work == pytest.approx(3600)
    after = workload([past_job("c", -7200, 3600)], BEGIN, NOW, 8)
    assert after[0].work == pytest.approx(7200)


def test_jobs_that_never_started_or_need_more_than_there_is_are_left_out() -> None:
    waiting = replace(past_job("a", -100, None), started=None)
    large = past_job("b", -100, -50, least=9, most=9)
    early = past_job("c", -90_000, -87_000)
    plain = replace(past_job("d", -100, -50), each=0)
    assert workload([waiting, large, early, plain], BEGIN, NOW, 8) == []


@pytest.mark.parametrize(("total", "cluster"), [(64, (8, 8)), (12, (3, 4)), (5, (5, 1))])
def test_nodes_add_up_to_what_there_was(total: int, cluster: tuple[int, int]) -> None:
    assert nodes(total) == cluster
