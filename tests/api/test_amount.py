"""Amounts with units: what may be added to what, and how products are rounded."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api.amount import Bytes, Cpu, Seconds

UNITS: list[Any] = [Cpu, Bytes, Seconds]


@pytest.mark.parametrize("one", UNITS)
@pytest.mark.parametrize("other", [*UNITS, int])
@pytest.mark.parametrize(
    "operation",
    [operator.add, operator.sub, operator.truediv, operator.lt, operator.ge, max],
)
def test_units_never_mix(one: Any, other: Any, operation: Callable[[Any, Any], Any]) -> None:
    if one is other:
        operation(one(2), other(1))
        return
    with pytest.raises((TypeError, AttributeError)):
        operation(one(2), other(1))
    assert one(1) != other(1)


@pytest.mark.parametrize("unit", UNITS)
def test_an_amount_times_an_amount_has_no_meaning(unit: Any) -> None:
    with pytest.raises(TypeError, match="has no meaning"):
        unit(2) * unit(2)


def test_what_is_no_whole_number_is_no_amount() -> None:
    with pytest.raises(TypeError, match=r"Bytes expects a whole number, found 1\.5"):
        Bytes(1.5)  # type: ignore[arg-type]


def test_quantities_are_read_and_written_as_kubernetes_spells_them() -> None:
    assert (Cpu.parse("500m"), Cpu.parse(2), Bytes.parse("1Gi")) == (
        Cpu(500),
        Cpu.cores(2),
        Bytes(2**30),
    )
    assert [str(x) for x in (Cpu(500), Cpu.cores(2), Bytes.gib(1.5), Seconds.of(0.25))] == [
        "500m",
        "2",
        "1536Mi",
        "0.25 s",
    ]


@given(st.integers(0, 10**15), st.floats(0, 100))
def test_a_product_is_never_less_than_it_should_be(count: int, factor: float) -> None:
    assert (Bytes(count) * factor).count >= round(count * factor, 3)
    assert (Bytes(count) * factor).count <= count * factor + 1


@given(st.integers(0, 10**12), st.integers(1, 100))
def test_equal_parts_add_up_to_the_whole(count: int, parts: int) -> None:
    whole = Cpu(count)
    assert whole <= whole.shared(parts) * parts
    assert whole.shared(parts) * parts - whole < Cpu(parts)


def test_whole_mebibytes_are_no_less() -> None:
    assert Bytes(2**20 + 1).whole_mebibytes() == Bytes(2 * 2**20)
    assert Bytes(2**20).whole_mebibytes() == Bytes(2**20)
