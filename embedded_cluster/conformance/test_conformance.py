"""The embedded API server answers as the real one does, but for what the documentation lists."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator

import pytest

from embedded_cluster.conformance import listed
from embedded_cluster.conformance.case import cases
from embedded_cluster.conformance.comparison import compare
from embedded_cluster.conformance.control_plane import EmbeddedControlPlane
from embedded_cluster.conformance.difference import Difference
from embedded_cluster.conformance.real_control_plane import RealControlPlane


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[list[Difference]]:
    """Everything that differs, of both servers started for this alone."""
    if request.config.getoption("--control-plane") != RealControlPlane.name:
        pytest.skip("compares with the real control plane; give --control-plane real")
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH")
    with RealControlPlane() as real, EmbeddedControlPlane() as ours:
        yield asyncio.run(compare(real, ours))


def test_every_difference_is_listed_with_its_reason(found: list[Difference]) -> None:
    unlisted = listed.unlisted(found, listed.patterns(listed.DOCUMENT.read_text()))
    assert not unlisted, "\n".join(
        f"{one.where}\n    real      {one.real}\n    embedded  {one.embedded}" for one in unlisted
    )


def test_every_listed_difference_is_there(found: list[Difference]) -> None:
    assert listed.stale(found, listed.patterns(listed.DOCUMENT.read_text())) == []


def test_there_are_hundreds_of_requests_and_watches() -> None:
    steps = [step.verb for case in cases() for step in case.steps]
    assert len(steps) >= 200 and steps.count("WATCH") >= 10
