"""The times of steps tell what newcomers cost those who train."""

from __future__ import annotations

from elastic_trainer.feed.pace import Pace


def test_steps_that_become_slower_are_lost_time() -> None:
    pace = Pace()
    for now in (0.0, 1.0, 2.0, 3.0):
        pace.passed(now, followed=False)
    assert (pace.lost, pace.step_seconds) == (0.0, 1.0)
    pace.passed(4.5, followed=True)
    assert (pace.lost, pace.step_seconds) == (0.5, 1.5)


def test_one_long_step_among_others_is_not_the_newcomers() -> None:
    pace = Pace()
    for now in (0.0, 1.0, 2.0):
        pace.passed(now, followed=False)
    for now in (3.0, 4.0, 64.0, 65.0):
        pace.passed(now, followed=True)
    assert pace.lost == 0.0


def test_what_a_step_is_kept_for_counts_once() -> None:
    pace = Pace()
    pace.passed(0.0, followed=False)
    pace.passed(1.0, followed=False)
    pace.kept(2.0)
    pace.passed(4.0, followed=True)
    assert (pace.lost, pace.step_seconds) == (2.0, 1.0)


def test_steps_of_another_round_are_not_compared() -> None:
    pace = Pace()
    pace.passed(0.0, followed=False)
    pace.passed(1.0, followed=False)
    pace.begin()
    pace.passed(60.0, followed=True)
    pace.passed(63.0, followed=True)
    assert (pace.lost, pace.step_seconds) == (0.0, 3.0)
