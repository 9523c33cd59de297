"""Figures of simulations, their bounds, and comparisons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.world import SMALL, job
from volcano_elastic.api.queue_policy import GPU
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.simulator.comparison import compare
from volcano_elastic.simulator.curve import (
    amdahl,
)
from volcano_elastic.simulator.figures import figures
from volcano_elastic.simulator.simulation import simulate
from volcano_elastic.simulator.worse_off import worse_off
from volcano_elastic.snapshot.snapshot import Queue


def test_figures_of_a_case_worked_out_by_hand() -> None:
    # 8 GPUs. a: 6 from 0 to 100; b: 4 from 100 to 200, having waited 90.
    outcome = simulate([job("a", 0, 6, 100), job("b", 10, 4, 100)], SMALL, None)
    found = figures(outcome, 200, rigid=True)
    assert (found.mean_completion, found.median_completion) == (145, 100)
    assert (found.mean_wait, found.p99_wait, found.makespan) == (45, 90, 200)
    assert found.allocated_utilisation == pytest.approx((600 + 400) / 1600)
    assert found.useful_utilisation == pytest.approx(1000 / 1600)
    # From 10 to 100, 8 could be held and 6 are.
    assert found.idle_while_wanted_hours == pytest.approx(2 * 90 / 3600)


def test_work_done_inefficiently_is_not_useful() -> None:
    halved = amdahl(1 / 7, 8)  # 8 workers do the work of 4
    config = replace(SMALL, pause=0.0)
    outcome = simulate([job("a", 0, 8, 100, curve=halved)], config, None)
    found = figures(outcome, 100)
    assert found.allocated_utilisation == 1 and found.useful_utilisation == pytest.approx(0.5)


def test_who_is_worse_off_is_counted() -> None:
    first = [job("a", 0, 8, 100), job("b", 0, 8, 100, queue="r")]
    one = simulate(first, SMALL, None)
    other = simulate([replace(j, submit=j.submit, work=j.work / 2) for j in first], SMALL, None)
    found = worse_off(one, other)
    assert (found.jobs, found.start_later, found.finish_later, found.worst) == (2, 0, 2, 2.0)
    assert found.queues == {"default": 2.0, "r": 2.0}
    assert worse_off(other, one).queues == {}


def test_a_trace_is_compared_with_rigid_and_with_static_shares() -> None:
    queues = (Queue("q", deserved={GPU: 4000}), Queue("r", deserved={GPU: 4000}))
    jobs = [job(f"j{i}", 10 * i, 4, 300, 1, 8, queue="q") for i in range(6)]
    found = compare(jobs, replace(SMALL, queues=queues), plan)
    assert found.elastic and found.static and found.than_static
    assert found.elastic.mean_completion < found.static.mean_completion
    assert found.than_static.queues == {}
    assert found.rigid.mean_completion < found.static.mean_completion


def test_gpus_that_nobody_could_use_efficiently_are_not_idle_while_wanted() -> None:
    badly = amdahl(0.9, 8)  # below half efficiency from 3 workers on
    outcome = simulate([job("a", 0, 1, 100, 1, 8, curve=badly)], SMALL, plan)
    assert max(part.size for part in outcome.runs[0].segments) == 2
    # Two of eight, once it has grown: nothing wanted is idle but in the first seconds.
    assert figures(outcome, 100).idle_while_wanted_hours <= 2 / 3600
