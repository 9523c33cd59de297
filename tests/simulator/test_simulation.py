"""The simulation: work is conserved, nothing overlaps, and the same planner decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.simulator.world import CALM, SMALL, job, times
from volcano_elastic.api.queue_policy import GPU, QueuePolicy
from volcano_elastic.queue_policy.decision import Plan
from volcano_elastic.queue_policy.plan import Planner, plan
from volcano_elastic.simulator.config import Discipline, SimulationConfig, Speeds
from volcano_elastic.simulator.curve import (
    amdahl,
)
from volcano_elastic.simulator.figures import figures, held_over_time, limits
from volcano_elastic.simulator.outcome import Stuck
from volcano_elastic.simulator.queue import partitioned
from volcano_elastic.simulator.simulation import simulate
from volcano_elastic.simulator.trace import TraceJob
from volcano_elastic.simulator.worse_off import worse_off
from volcano_elastic.snapshot.snapshot import Queue, Snapshot

# Rigid scheduling


def test_a_gang_that_fits_overtakes_one_that_does_not() -> None:
    jobs = [job("a", 0, 6, 100), job("b", 10, 4, 100), job("c", 20, 2, 100)]
    assert times(simulate(jobs, SMALL, None)) == {
        "a": (0, 100),
        "b": (100, 200),
        "c": (20, 120),
    }


def test_in_strict_order_nobody_overtakes() -> None:
    jobs = [job("a", 0, 6, 100), job("b", 10, 4, 100), job("c", 20, 2, 100)]
    config = replace(SMALL, discipline=Discipline.FIFO)
    assert times(simulate(jobs, config, None))["c"] == (100, 200)


def test_a_queue_confined_to_its_share_waits_though_others_idle() -> None:
    queues = partitioned([Queue("q", deserved={GPU: 4000}), Queue("r", deserved={GPU: 4000})])
    jobs = [job("a", 0, 4, 100, queue="q"), job("b", 0, 4, 100, queue="q")]
    found = times(simulate(jobs, replace(SMALL, queues=queues), None))
    assert sorted(found.values()) == [(0, 100), (100, 200)]


def test_a_job_too_large_for_its_queue_is_named_and_nothing_hangs() -> None:
    queues = (Queue("q", capability={GPU: 2000}),)
    jobs = [job("big", 0, 4, 100, 3, 4, queue="q"), job("ok", 0, 1, 10, queue="q")]
    for planner in (None, plan):
        with pytest.raises(Stuck, match="first of them big"):
            simulate(jobs, replace(SMALL, queues=queues), planner)


# Elastic jobs under the planner


def test_a_job_alone_starts_at_its_max() -> None:
    [run] = simulate([job("a", 0, 2, 400, 2, 8)], SMALL, plan).runs
    assert (run.start, run.finish, run.resizes) == (0, 100, 0)


def test_who_grows_pays_one_pause() -> None:
    jobs = [job("rigid", 0, 6, 100), job("a", 0, 2, 400, 2, 8)]
    run = simulate(jobs, SMALL, plan).runs[1]
    grown = run.segments[1].begin
    assert run.start == 0 and 100 <= grown <= 102 and run.resizes == 1
    assert run.finish == pytest.approx(grown + 30 + (800 - 2 * grown) / 8)


def test_a_newcomer_starts_at_once_and_surplus_leaves() -> None:
    jobs = [job("old", 0, 4, 2000, 2, 8), job("new", 500, 4, 100)]
    found = {run.job.name: run for run in simulate(jobs, SMALL, plan).runs}
    assert found["new"].wait == 0
    assert [part.size for part in found["old"].segments][:2] == [8, 4]


def test_a_newcomer_waits_for_the_grace_of_those_who_leave() -> None:
    jobs = [job("old", 0, 4, 2000, 2, 8), job("new", 500, 4, 100)]
    found = simulate(jobs, replace(SMALL, grace=20.0), plan)
    assert {run.job.name: run.wait for run in found.runs}["new"] == 20
    assert found.leaving == 20 * 4


def test_growth_waits_for_the_cooldown() -> None:
    jobs = [job("old", 0, 4, 4000, 2, 8), job("other", 0, 4, 500), job("late", 495, 4, 3)]
    policy = replace(CALM, grow=replace(CALM.grow, cooldown=timedelta(minutes=5)))
    config = replace(SMALL, policies=(policy,))
    changes = [part.begin for part in simulate(jobs, config, plan).runs[0].segments]
    assert all(later - earlier >= 300 for earlier, later in pairwise(changes[1:]))


@pytest.mark.parametrize("least", [44, 150])
def test_the_seed_experiment_ends_within_three_percent_of_the_oracle(least: int) -> None:
    jobs = [job(n, t, 175, 650, least, 175) for n, t in (("older", 0.0), ("newer", 300.0))]
    config = SimulationConfig(20, 16, resource="cpu", pause=0.0)
    assert figures(simulate(jobs, config, None), 1300).makespan == 1300
    elastic = simulate(jobs, config, plan)
    assert figures(elastic, 1300).makespan <= 1.03 * 1010
    assert max(run.wait for run in elastic.runs) <= 1


@pytest.mark.parametrize(("hours", "deserved"), [(6, 8), (16, 8), (8, 16), (8, 24)])
def test_many_small_jobs_beside_few_large_ones_are_no_worse_off_than_rigid(
    hours: int, deserved: int
) -> None:
    """Rigid, all run at once. What the large ones' queue deserves lets them grow fourfold, which
    must not bring the small ones back to their minimums meanwhile."""
    curve = amdahl(0.036, 64)
    shares = {"few": 64 - deserved, "many": deserved}
    queues = tuple(Queue(name, deserved={GPU: 1000 * gpus}) for name, gpus in shares.items())
    config = SimulationConfig(8, 8, queues=queues)
    jobs = [
        job(f"large-{n}", 0, 8, 3600 * hours, 2, 32, queue="few", curve=curve) for n in range(3)
    ] + [job(f"small-{n}", 100, 4, 10_000, 1, 16, queue="many", curve=curve) for n in range(10)]
    outcome, rigid = simulate(jobs, config, Planner().plan), simulate(jobs, config, None)
    assert all(ratio <= 1.1 for ratio in worse_off(outcome, rigid).queues.values())


def test_the_planner_sees_pods_speeds_and_hours() -> None:
    seen: list[Snapshot] = []

    def look(snapshot: Snapshot, now: datetime) -> Plan:
        seen.append(snapshot)
        return plan(snapshot, now)

    jobs = [job("a", 0, 4, 12000, 2, 8), job("b", 5000, 1, 10)]
    simulate(jobs, SMALL, look)
    last = [snapshot for snapshot in seen if len(snapshot.jobs) == 2][-1]
    a = next(one for one in last.jobs if one.key == "a")
    assert a.speeds[8] == 8 and a.gpu_hours >= 10
    assert sum(pod.job == "a" and pod.node is not None for pod in last.pods) == 7
    assert sum(pod.protected for pod in last.pods if pod.job == "a") == 2


def test_the_planner_is_told_no_more_hours_of_a_job_that_is_old() -> None:
    seen: list[float] = []

    def look(snapshot: Snapshot, now: datetime) -> Plan:
        seen.extend(one.gpu_hours for one in snapshot.jobs if one.key == "long")
        return plan(snapshot, now)

    jobs = [job("long", 0, 4, 36_000)] + [job(f"b-{n}", 3000 * n, 1, 60) for n in range(1, 12)]
    simulate(jobs, SMALL, look)
    young = QueuePolicy("default").surplus.young_gpu_hours
    assert len({hours for hours in seen if hours < young}) > 3
    assert len({hours for hours in seen if hours >= young}) == 1, "however many there are"


def test_speeds_are_learnt_size_by_size() -> None:
    seen: list[set[int]] = []

    def look(snapshot: Snapshot, now: datetime) -> Plan:
        seen.append({size for one in snapshot.jobs for size in one.speeds})
        return plan(snapshot, now)

    jobs = [job("a", 0, 4, 8000, 2, 8), job("b", 1000, 1, 10)]
    simulate(jobs, replace(SMALL, speeds=Speeds.LEARNT), look)
    assert seen[0] == set() and {7, 8} <= set().union(*seen)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    made = []
    for i in range(draw(st.integers(1, 8))):
        gpus = draw(st.integers(1, 8))
        least, most = draw(st.integers(1, gpus)), draw(st.integers(gpus, 8))
        made.append(
            job(
                f"j{i}",
                draw(st.integers(0, 600)),
                gpus,
                draw(st.integers(1, 900)),
                least,
                most,
                queue=draw(st.sampled_from(["q", "r"])),
                curve=amdahl(draw(st.sampled_from([0.0, 0.04, 0.4])), 8),
            )
        )
    return made


@given(
    traces(),
    st.sampled_from([0.0, 5.0, 60.0]),
    st.sampled_from([0.0, 10.0]),
    st.sampled_from([plan, None]),
    st.sampled_from(list(Speeds)),
)
@settings(max_examples=examples(60), deadline=None)
def test_work_is_conserved_rooms_is_never_exceeded_and_no_bound_beaten(
    jobs: list[TraceJob], pause: float, grace: float, planner: object, speeds: Speeds
) -> None:
    config = SimulationConfig(2, 4, pause=pause, grace=grace, speeds=speeds)
    if planner is None:
        jobs = [replace(one, min=one.gpus, max=one.gpus) for one in jobs]
    outcome = simulate(jobs, config, planner)  # type: ignore[arg-type]
    for run in outcome.runs:
        done = sum(
            run.job.curve[part.size] * (part.end - part.begin - part.standstill)
            for part in run.segments
        )
        assert done == pytest.approx(run.job.work)
        assert all(run.job.min <= part.size <= run.job.max for part in run.segments)
        assert run.segments[0].begin == run.start >= run.job.submit
        assert run.segments[-1].end == run.finish
        for before, after in pairwise(run.segments):
            assert before.end == after.begin and before.size != after.size
    assert max(level for _, level in held_over_time(outcome.runs)) <= config.total
    window = max(run.finish for run in outcome.runs)
    found, bound = figures(outcome, window), limits(jobs, config.total, window)
    for name in ("mean_completion", "median_completion", "p99_completion", "makespan"):
        assert getattr(found, name) >= getattr(bound, name) * (1 - 1e-9), name
    assert found.useful_utilisation <= bound.useful_utilisation + 1e-9  # type: ignore[operator]
    quicker = Planner().plan if planner is plan else None
    assert simulate(jobs, config, quicker) == outcome
