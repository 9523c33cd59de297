"""Histograms with decay: what is old counts less, and percentiles are within a bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.brain.estimate.histogram import HALF_LIFE, Histogram

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def of(*samples: int, at: datetime = NOW) -> Histogram[Cpu]:
    found = Histogram(Cpu, NOW)
    for sample in samples:
        found = found.with_sample(Cpu(sample), at)
    return found


def shares(histogram: Histogram[Cpu]) -> dict[int, float]:
    """Each bucket's part of the weight."""
    whole = sum(histogram.weights.values())
    return {bucket: weight / whole for bucket, weight in histogram.weights.items()}


def test_an_empty_histogram_has_no_percentile() -> None:
    assert of().percentile(0.95) is None


@given(st.lists(st.integers(1, 128_000), min_size=1, max_size=40), st.floats(0.01, 1))
def test_a_percentile_is_at_most_a_bucket_above_the_sample(
    samples: list[int], share: float
) -> None:
    found = of(*samples).percentile(share)
    ordered = sorted(samples)
    exact = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
    assert found is not None and found >= Cpu(min(samples))
    assert found.count <= max(samples) * 1.05 + 11
    assert of(*samples).percentile(1.0) >= Cpu(max(samples))  # type: ignore[operator]
    assert found.count >= exact * 0.9 - 11 or len(set(samples)) > 1


def test_a_sample_of_a_day_later_weighs_twice_as_much() -> None:
    found = of(1000).with_sample(Cpu(4000), NOW + HALF_LIFE)
    low, high = found.percentile(0.33), found.percentile(0.34)
    assert low is not None and low < Cpu(1100)
    assert high is not None and high >= Cpu(4000)


def test_a_year_of_samples_overflows_nothing_and_forgets_the_first() -> None:
    found = Histogram(Bytes, NOW).with_sample(Bytes.gib(64), NOW)
    for day in range(400):
        found = found.with_sample(Bytes.gib(1), NOW + timedelta(days=day))
    peak = found.percentile(1.0)
    assert peak is not None and peak < Bytes.gib(1.1)


@given(st.lists(st.integers(1, 9000), max_size=9), st.lists(st.integers(1, 9000), max_size=9))
def test_histograms_add_up_in_any_order(one: list[int], other: list[int]) -> None:
    later = NOW + timedelta(hours=30)
    first, second = of(*one), Histogram(Cpu, later)
    for sample in other:
        second = second.with_sample(Cpu(sample), later)
    both, turned = first.with_all_of(second), second.with_all_of(first)
    assert both.percentile(0.5) == turned.percentile(0.5)
    straight = first
    for sample in other:
        straight = straight.with_sample(Cpu(sample), later)
    assert shares(both) == pytest.approx(shares(straight))
