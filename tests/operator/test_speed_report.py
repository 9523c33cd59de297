"""Noise of measured speeds and pauses stays out of the status: operator/speed_report.py."""

from __future__ import annotations

from datetime import timedelta

from volcano_elastic.operator.speed_report import news, pause_to_write


def test_noise_is_not_written() -> None:
    known = {"1": 100, "2": 190}
    assert news(known, {1: 104.0, 2: 181.0}) == {}
    assert news(known, {1: 106.0, 2: 190.0, 3: 250.0}) == {"1": 106.0, "3": 250.0}


def test_a_pause_is_written_when_it_is_the_first_or_another_than_before() -> None:
    usual = timedelta(seconds=2)
    assert pause_to_write(None, usual) == 2.0
    assert pause_to_write(1.7, usual) is None
    assert pause_to_write(1.5, usual) == 2.0
    assert pause_to_write(0, timedelta(0)) is None
    assert pause_to_write(2.0, None) is None
