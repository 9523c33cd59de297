"""The demo's figures follow from what was seen."""

import pytest

from volcano_elastic.demo.timeline import PodSpan, Timeline, steps


def _pod(job: str, index: int, running: float | None, ended: float | None = None) -> PodSpan:
    return PodSpan(job, index, f"{job}-worker-{index}", gpus=1, running=running, ended=ended)


def _timeline(*pods: PodSpan) -> Timeline:
    return Timeline(submitted={"a": 0.0, "b": 5.0}, pods={str(i): p for i, p in enumerate(pods)})


def test_sizes_follow_starts_and_ends() -> None:
    pods = [_pod("a", 0, 1.0, 9.0), _pod("a", 1, 2.0, 4.0), _pod("a", 2, None)]
    assert steps(pods) == [(1.0, 1), (2.0, 2), (4.0, 1), (9.0, 0)]


def test_a_pod_that_never_ran_holds_nothing() -> None:
    timeline = _timeline(_pod("a", 0, None))
    assert timeline.utilisation(4, 0, 10) == 0
    assert timeline.wait_for_first_pod("a") is None


def test_utilisation_counts_only_the_span_asked_for() -> None:
    timeline = _timeline(_pod("a", 0, 0.0, 10.0), _pod("a", 1, 5.0, None))
    assert timeline.utilisation(2, 0, 10) == pytest.approx(0.75)
    assert timeline.utilisation(2, 5, 10) == pytest.approx(1.0)


def test_waiting_is_counted_from_submission() -> None:
    timeline = _timeline(_pod("b", 0, 6.0), _pod("b", 1, 8.5))
    assert timeline.wait_for_first_pod("b") == pytest.approx(1.0)
    assert timeline.wait_for_minimum("b", 2) == pytest.approx(3.5)
    assert timeline.wait_for_minimum("b", 3) is None
