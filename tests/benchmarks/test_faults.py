"""Samples that count under faults: each once, whatever was rolled back and made again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fault_box import BATCH
from benchmarks.faults import Fault, Step, lost_seconds, samples_at


def test_steps_that_were_made_again_count_once_and_in_their_last_world() -> None:
    steps = [Step(1, 1, 4), Step(2, 2, 4), Step(3, 3, 4), Step(4, 2, 2), Step(5, 3, 2)]
    assert samples_at(steps, 3) == 4 * BATCH, "steps 2 and 3 are to be made again"
    assert samples_at(steps, 4) == 6 * BATCH
    assert samples_at(steps, 9) == 8 * BATCH
    assert samples_at(steps, 0) == 0


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), max_size=30))
def test_no_step_counts_twice_and_none_beyond_the_last(made: list[tuple[int, int]]) -> None:
    steps = [Step(time, step, world) for time, (step, world) in enumerate(made)]
    last = dict(made)
    newest = made[-1][0] if made else 0
    most = sum(world for step, world in last.items() if step <= newest)
    counted = samples_at(steps, len(made))
    assert counted <= BATCH * most
    if [step for step, _ in made] == list(range(1, len(made) + 1)):
        assert counted == BATCH * most


def test_a_fault_costs_what_is_missing_until_the_next_but_for_nodes_that_are_away() -> None:
    steps = [Step(time, time, 2) for time in (1, 2, 3, 6, 7, 8, 9, 10)]
    faults = [Fault("stop", 3, 0), Fault("node down", 7, 0), Fault("stop", 9, 1)]
    lost = lost_seconds(steps, faults, Fault("", 10, 1), calm=2 * BATCH)
    assert lost == pytest.approx({"node down": -1, "stop": (2 + 0) / 2})
