"""How long jobs last is learnt from those that ended and those that still run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forecast.world import past_job
from tests.queue_policy.world import NOW
from volcano_elastic.forecast.past import Past, length
from volcano_elastic.forecast.survival import MIDDLE, draw_unknown, kaplan_meier

TIMES = st.floats(1, 1e6)
RANKS = st.floats(0.001, 0.999)


def test_jobs_that_still_run_count_for_as_long_as_they_have_run() -> None:
    # Of four, one ended after 10; two are left of which one ends after 30.
    found = kaplan_meier([(10, True), (20, False), (30, True), (40, False)])
    assert found.share(9) == 1
    assert found.share(10) == pytest.approx(1 - 1 / 5)
    assert found.share(35) == pytest.approx((1 - 1 / 5) * (1 - 1 / 3) * 30 / 35)


@given(st.lists(st.tuples(TIMES, st.booleans()), min_size=1), TIMES, RANKS, RANKS)
def test_a_job_lasts_no_shorter_than_it_has_and_longer_the_fewer_do(
    observed: list[tuple[float, bool]], age: float, one: float, other: float
) -> None:
    observed.append((5.0, True))
    found = kaplan_meier(observed)
    low, high = sorted([one, other])
    assert age <= found.draw(age, high) <= found.draw(age, low)
    assert age <= draw_unknown(age, high) <= draw_unknown(age, low)


@given(st.lists(TIMES, min_size=20, unique=True), st.integers(1, 19))
def test_draws_are_the_lengths_of_those_that_lasted_as_long(lengths: list[float], i: int) -> None:
    age = sorted(lengths)[i - 1]
    longer = sum(one > age for one in lengths)
    drawn = kaplan_meier((one, True) for one in lengths).draw(age, 0.5)
    below = sum(age < one < drawn for one in lengths)
    assert abs(below - longer / 2) <= 1.5 or drawn > max(lengths)


def test_without_a_past_lengths_are_wide() -> None:
    assert draw_unknown(0, 0.5) == MIDDLE
    assert draw_unknown(0, 0.1) == 9 * MIDDLE


def test_lengths_are_counted_at_the_minimum_size() -> None:
    # Four GPUs for an hour, by a job that could have run on one.
    quick = past_job("a", 0, 3600, least=1, most=4, hours=4.0)
    assert length(quick, NOW) == pytest.approx(3600 * 4 / (1 + 0.036 * 3))
    # Whoever waited half of its time did not run then.
    waited = past_job("a", 0, 7200, least=2, most=2, hours=2.0)
    assert length(waited, NOW) == pytest.approx(3600)


def test_jobs_of_the_same_user_and_queue_are_asked_first_and_others_where_they_are_few() -> None:
    own = [past_job("mine", -i * 100, 600 - i * 100, queue="q") for i in range(20, 40)]
    others = [past_job("yours", -i * 100, 9000 - i * 100, queue="r") for i in range(90, 120)]
    past = Past([*own, *others], NOW)
    asked = past_job("mine", 0, None, queue="q")
    assert past.draw(asked, 0, 0.5) == pytest.approx(600)
    assert past.draw(asked, 1000, 0.5) == pytest.approx(9000), "none of its own lasted as long"
    assert Past([], NOW).draw(asked, 0, 0.5) == MIDDLE


def test_others_arrive_as_on_a_past_day_and_the_same_days_again() -> None:
    daily = [past_job("a", -86_400 * day + 60, 100 - 86_400 * day) for day in range(1, 4)]
    past = Past(daily, NOW)
    assert past.days == 2
    came = [after for after, _ in past.arrivals(2, timedelta(days=3))]
    assert came == [timedelta(days=day, seconds=60) for day in range(3)]
