"""Figures that a script reports: told once a second, new names at once, none lost at the end."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from elastic_trainer.link.figures import EVERY_SECONDS, MOST, Figures, decoded, encoded
from hypothesis import given
from hypothesis import strategies as st


def test_the_newest_are_told_once_a_second_and_new_names_at_once() -> None:
    figures = Figures()
    assert figures.report({"loss": 2.0}, 0.0) == {"loss": "2"}
    assert figures.report({"loss": 1.5}, 0.1) == {}
    assert figures.report({"loss": 1.0, "rate": 1e-4}, 0.2) == {"loss": "1", "rate": "0.0001"}
    assert figures.report({"loss": 0.5}, 0.2 + EVERY_SECONDS) == {"loss": "0.5"}
    assert figures.report({"rate": math.nan}, 0.3 + EVERY_SECONDS) == {}
    assert figures.take() == {"rate": "nan"} and figures.take() == {}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(), st.floats(0, 2)), max_size=30))
def test_what_was_told_in_the_end_is_what_was_reported_last(
    reports: list[tuple[str, float, float]],
) -> None:
    figures, now, told, last = Figures(), 0.0, dict[str, str](), dict[str, float]()
    for name, value, wait in reports:
        now += wait
        last[name] = value
        told |= decoded(encoded(figures.report({name: value}, now)))
    told |= figures.take()
    assert told == {name: f"{value:.6g}" for name, value in last.items()}


@pytest.mark.parametrize("names", [["x" * 64], [""], [f"m{i}" for i in range(MOST + 1)]])
def test_too_many_and_too_long_names_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="expected at most 16 names of at most 63"):
        Figures().report(dict.fromkeys(names, 1.0), 0.0)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": "x"}', '{"": "1"}', "{"])
def test_what_is_no_figures_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="expected 16 names"):
        decoded(text)


def test_a_librarys_log_is_reported_as_far_as_there_is_room() -> None:
    figures = Figures()
    log = {"loss": torch.tensor(0.5), "stage": "train", "grad": torch.ones(2), "x" * 64: 1.0}
    assert figures.fitting(log | {"done": True, "none": None}) == {"loss": 0.5}
    many = {f"m{i}": float(i) for i in range(2 * MOST)}
    figures.report(figures.fitting(many), 0.0)
    assert figures.fitting(many | {"loss": 1.0}) == {f"m{i}": float(i) for i in range(MOST)}


@given(
    st.lists(st.dictionaries(st.text(max_size=70), st.floats() | st.text() | st.none())),
)
def test_no_log_is_refused(logs: list[dict[str, Any]]) -> None:
    figures = Figures()
    for log in logs:
        figures.report(figures.fitting(log), 0.0)
