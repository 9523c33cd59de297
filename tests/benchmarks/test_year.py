"""A simulated year of failures follows from renewal theory where that has a formula."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.year import PUBLISHED_MTTF, in_process, mttf, restarting, simulate


@pytest.mark.parametrize("stall", [60.0, 600.0, 3600.0])
def test_a_restart_that_failures_begin_anew_leaves_the_share_of_the_formula(stall: float) -> None:
    # Memoryless failures: steps are made where none came for as long as the last restart takes.
    found = simulate(
        1000,
        restarting(stall, ""),
        draw=random.Random(1),
        away=0.0,
        step=0.0,
        between=3600.0,
        seconds=20_000 * 3600.0,
    )
    assert found.effective == pytest.approx(math.exp(-stall / 3600), abs=0.01)


def test_nodes_that_are_away_are_missing_from_all_and_not_from_those_there() -> None:
    found = simulate(
        1000, in_process(0.0, ""), draw=random.Random(1), away=6 * 3600.0, step=0.0, between=3600.0
    )
    away = 0.78 * 6 * 8 / 1000  # Little's law: nodes that are away at a time
    assert found.of_all / found.effective == pytest.approx(1 - away, abs=0.003)


def test_time_between_failures_meets_what_was_published_and_falls_with_size() -> None:
    for gpus, seconds in PUBLISHED_MTTF:
        assert mttf(gpus) == pytest.approx(seconds)
    sizes = [2**i for i in range(3, 20)]
    times = [mttf(gpus) for gpus in sizes]
    assert times == sorted(times, reverse=True)
