"""No schedule beats the bounds, and where they claim to be exact they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from volcano_elastic.simulator.bounds import bounds
from volcano_elastic.simulator.curve import amdahl
from volcano_elastic.simulator.trace import TraceJob


def job(name: str, submit: float, work: float, most: int, serial: float = 0.0) -> TraceJob:
    return TraceJob(name, "default", submit, most, work, amdahl(serial, most), 1, most)


@st.composite
def traces(draw: st.DrawFn, serial: float = 0.0) -> tuple[list[TraceJob], int]:
    total = draw(st.integers(1, 6))
    count = draw(st.integers(1, 5))
    return [
        job(
            f"j{i}",
            draw(st.integers(0, 20)),
            draw(st.integers(1, 40)),
            draw(st.integers(1, total)),
            serial,
        )
        for i in range(count)
    ], total


def _fluid(jobs: list[TraceJob], total: int, until: float) -> float:
    """The most area that a fluid schedule can have done by then: a linear programme over the
    intervals between releases."""
    times = sorted({*(j.submit for j in jobs if j.submit < until), until})
    spans = list(itertools.pairwise(times))
    n, m = len(jobs), len(spans)
    if not m:
        return 0.0
    upper, limit = [], []
    for s, (begin, end) in enumerate(spans):
        row = np.zeros(n * m)
        row[s::m] = 1
        upper.append(row)
        limit.append(total * (end - begin))
    for i, j in enumerate(jobs):
        row = np.zeros(n * m)
        row[i * m : (i + 1) * m] = 1
        upper.append(row)
        limit.append(j.area)
    from scipy.optimize import linprog  # half a second, which no other test needs

    caps = [
        (0, j.area / j.length * (end - begin) if j.submit <= begin else 0)
        for j in jobs
        for begin, end in spans
    ]
    found = linprog(-np.ones(n * m), np.array(upper), np.array(limit), bounds=caps)
    assert found.success, found.message
    return float(-found.fun)


@given(traces(serial=0.1), st.integers(1, 60))
@settings(max_examples=examples(60), deadline=None)
def test_useful_utilisation_is_exactly_what_a_linear_programme_finds(
    case: tuple[list[TraceJob], int], window: int
) -> None:
    jobs, total = case
    zero = min(j.submit for j in jobs)
    found = bounds(jobs, total, window).useful_utilisation * total * window
    assert found == pytest.approx(_fluid(jobs, total, zero + window), abs=1e-6)


@given(traces())
@settings(max_examples=examples(60), deadline=None)
def test_makespan_is_exact_for_linear_speed_with_caps(case: tuple[list[TraceJob], int]) -> None:
    jobs, total = case
    zero, everything = min(j.submit for j in jobs), sum(j.area for j in jobs)
    end = bounds(jobs, total, 1.0).makespan + zero
    assert _fluid(jobs, total, end) == pytest.approx(everything, abs=1e-6)
    if end - zero > 0.01:
        assert _fluid(jobs, total, end - 0.005) < everything - 1e-4


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_no_schedule_in_unit_steps_has_a_smaller_mean_completion(
    case: list[tuple[int, int]],
) -> None:
    total = 2
    jobs = [job(f"j{i}", submit, work, 2) for i, (submit, work) in enumerate(case)]

    def best(now: int, left: tuple[int, ...]) -> float:
        """The least sum of finish times, trying every way to share two workers each second."""
        if not any(left):
            return 0.0
        key = (now, left)
        if key not in known:
            active = [i for i, w in enumerate(left) if w and jobs[i].submit <= now]
            ways = [()] if not active else itertools.combinations_with_replacement(active, total)
            known[key] = min(_after(now, left, way) for way in ways)
        return known[key]

    def _after(now: int, left: tuple[int, ...], way: tuple[int, ...]) -> float:
        after = tuple(max(0, w - way.count(i)) for i, w in enumerate(left))
        ended = sum(1 for w, v in zip(left, after, strict=True) if w and not v)
        return ended * (now + 1) + best(now + 1, after)

    known: dict[tuple[int, tuple[int, ...]], float] = {}
    optimum = (best(0, tuple(w for _, w in case)) - sum(s for s, _ in case)) / len(case)
    # A job that ends within a second is counted at its end: at most a second too late.
    assert bounds(jobs, total, 1.0).mean_completion <= optimum + 1e-9


@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_the_bound_on_completion_is_below_the_optimum_for_power_laws(power: float) -> None:
    """heSRPT (Berg 2019): all at once, s = k^p, no caps, sizes descending x:
    sum of completions = sum x_i [i^c - (i-1)^c]^(1/c) / C^p with c = 1/(1-p)."""
    total = 32
    works = [900.0, 400.0, 250.0, 80.0, 10.0]
    curve = (0.0, *(k**power for k in range(1, total + 1)))
    jobs = [
        TraceJob(f"j{i}", "default", 0.0, total, work, curve, 1, total)
        for i, work in enumerate(works)
    ]
    c = 1 / (1 - power)
    optimum = sum(
        x * (i**c - (i - 1) ** c) ** (1 / c) / total**power for i, x in enumerate(works, start=1)
    )
    found = bounds(jobs, total, 1.0).mean_completion
    assert 0.2 * optimum / len(works) < found <= optimum / len(works) + 1e-9


def test_one_job_alone_is_bounded_by_its_length() -> None:
    found = bounds([job("a", 5.0, 100.0, 4)], 8, 50.0)
    assert (found.mean_completion, found.makespan) == (25.0, 25.0)
    assert found.useful_utilisation == pytest.approx(100 / (8 * 50))


def test_the_two_jobs_of_the_seed_experiment_cannot_end_before_950() -> None:
    jobs = [job("older", 0.0, 175 * 650, 175), job("newer", 300.0, 175 * 650, 175)]
    assert bounds(jobs, 320, 950.0).makespan == 950.0
