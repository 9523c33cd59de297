"""A leave's deadlines, for short graces and long ones."""

from __future__ import annotations

import pytest
from elastic_trainer.agent.departure import Departure


def test_who_does_not_leave_has_no_time_to_be_killed_at() -> None:
    departure = Departure(30.0)
    assert not departure.under_way and departure.grace_left(5.0) == 0.0
    assert departure.goodbye_seconds(5.0) == departure.unreachable_seconds


@pytest.mark.parametrize(
    ("grace", "unreachable", "longest"),
    [(3.0, 1.0, 2.25), (30.0, 10.0, 28.0), (600.0, 10.0, 598.0)],
)
def test_a_leaver_goes_before_it_is_killed(
    grace: float, unreachable: float, longest: float
) -> None:
    departure = Departure(grace)
    departure.begin(100.0)
    assert departure.under_way
    assert (departure.unreachable_seconds, departure.longest_seconds) == (unreachable, longest)
    assert departure.grace_left(101.0) == grace - 1.0
    assert departure.grace_left(100.0 + grace) > 0.0, "the coordinator takes 0 for not told"
    assert departure.goodbye_seconds(100.5) == unreachable - 0.5
    assert departure.goodbye_seconds(100.0 + grace) == 0.0
