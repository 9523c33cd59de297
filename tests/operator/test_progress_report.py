"""How far a job is: what of a coordinator's word is believed, and when it is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.operator.progress_report import MOST_SECONDS, Progress, read, to_write

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"samples": 1},
        {"samples": 1, "total": 0},
        {"samples": -1, "total": 5},
        {"samples": True, "total": 5},
        {"samples": "1", "total": 5},
    ],
)
def test_what_makes_no_sense_is_no_progress(found: object) -> None:
    assert read(found) is None


@given(
    samples=st.integers(0, 10**18),
    total=st.integers(1, 10**18),
    left=st.none() | st.booleans() | st.integers() | st.floats(),
)
def test_whatever_is_told_the_percentage_and_the_rest_are_within_bounds(
    samples: int, total: int, left: Any
) -> None:
    found = read({"samples": samples, "total": total, "remaining_seconds": left})
    assert found is not None and 0 <= found.percentage <= 100
    assert (found.percentage == 100) == (samples >= total)
    assert found.remaining is None or 0 <= found.remaining <= MOST_SECONDS


def test_metrics_are_kept_by_name_and_nonsense_among_them_is_left_out() -> None:
    told = {"loss": "0.31", "nan": "nan", "x" * 64: "1", "": "1", "words": "many", "number": 1}
    found = read({"samples": 1, "total": 2}, told)
    assert found == Progress(50, None, {"loss": "0.31", "nan": "nan"})
    assert read(None, {"loss": "0.31"}) == Progress(None, None, {"loss": "0.31"})
    assert read(None, {"loss": "low"}) is None
    many = read(None, {f"m{i}": "1" for i in range(99)})
    assert many is not None and len(many.metrics) == 16


def test_metrics_are_written_at_first_and_then_in_time() -> None:
    first = to_write({}, Progress(None, None, {"loss": "2"}), NOW)
    assert first is not None and first["metrics"] == [{"name": "loss", "value": "2"}]
    later = Progress(None, None, {"loss": "1"})
    assert to_write(first, later, NOW + timedelta(minutes=4)) is None
    assert to_write(first, later, NOW + timedelta(minutes=6)) is not None
    same = Progress(None, None, {"loss": "2"})
    assert to_write(first, same, NOW + timedelta(hours=6)) is None, "nothing is new"
    both = to_write(first, Progress(5, None, {"loss": "2"}), NOW)
    assert both is not None and both["progressPercentage"] == 5, "how far it is has become known"


def test_the_first_word_and_large_changes_are_written_at_once_and_small_ones_in_time() -> None:
    known: dict[str, Any] = {}
    written = []
    for second in range(0, 1000, 10):  # 1 % each 10 s
        now = NOW + timedelta(seconds=second)
        change = to_write(known, Progress(second // 10, 1000 - second), now)
        if change is not None:
            written.append(change["progressPercentage"])
            known = change
    assert written == list(range(0, 100, 5))
    assert to_write(known, Progress(95, 1), NOW + timedelta(hours=9)) is None, "nothing is new"
    assert to_write(known, Progress(96, 1), NOW + timedelta(seconds=1200)) is None
    assert to_write(known, Progress(96, 1), NOW + timedelta(seconds=1300)) is not None
    assert to_write(known, Progress(100, 0), NOW + timedelta(seconds=960)) is not None
    assert to_write(known, Progress(20, 900), NOW + timedelta(seconds=960)) is not None, "undone"
    assert to_write(known, None, NOW) is None
    broken = {"progressPercentage": "x", "lastUpdatedTime": "y"}
    assert to_write(broken, Progress(3, None), NOW) is not None


def test_that_the_rest_is_known_is_written_at_once() -> None:
    first = to_write({}, Progress(1, None), NOW)
    assert first is not None
    second = to_write(first, Progress(1, 500), NOW + timedelta(seconds=10))
    assert second is not None and second["estimatedRemainingSeconds"] == 500
    assert to_write(second, Progress(2, 490), NOW + timedelta(seconds=20)) is None
