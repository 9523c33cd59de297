"""GPU hours add up what each pod holds, and are written now and then: operator/gpu_hours.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from volcano_elastic.operator.gpu_hours import due, units, used

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_hours_are_written_at_a_change_of_size_and_every_few_minutes() -> None:
    use = used(None, 8, 2, 1.5, NOW)
    assert use.hours == 1.5 and not due(use, 2, NOW)
    use = used(use, 8, 2, 99.0, NOW + timedelta(seconds=90))
    assert use.hours == pytest.approx(1.7), "8 GPUs for 90 s"
    assert due(use, 3, NOW + timedelta(seconds=90))
    assert not due(use, 2, NOW + timedelta(seconds=90))
    assert due(use, 2, NOW + timedelta(minutes=6))


def test_hours_add_up_what_each_pod_holds() -> None:
    gpu = "nvidia.com/gpu"
    assert units([{gpu: 1000}, {gpu: 3000, "cpu": 8000}], gpu) == 2.0
    assert units([{"cpu": 500}], gpu) == 0.5, "without GPUs it is cpu that counts"
