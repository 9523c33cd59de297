"""The demo's limits follow the machine: volcano_elastic/demo/machine_speed.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.demo.machine_speed import MOST, REFERENCE_SECONDS, measure_start, slowness

SECONDS = st.floats(min_value=0, allow_infinity=True)


def test_a_machine_half_as_fast_has_twice_the_time() -> None:
    assert slowness(REFERENCE_SECONDS) == 1
    assert slowness(2 * REFERENCE_SECONDS) == 2


@given(SECONDS, SECONDS)
def test_limits_only_ever_grow_with_slowness_and_stay_finite(one: float, other: float) -> None:
    assert 1 <= slowness(one) <= MOST
    assert slowness(min(one, other)) <= slowness(max(one, other))


@pytest.mark.process
async def test_a_start_is_measured() -> None:
    assert 0 < await measure_start() <= MOST * REFERENCE_SECONDS
