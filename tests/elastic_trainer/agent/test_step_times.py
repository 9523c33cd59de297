"""The patience with a worker follows its steps."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from elastic_trainer.agent.step_times import RECENT, StepTimes
from elastic_trainer.identity import Identity
from elastic_trainer.link import message
from elastic_trainer.link.message import decode_from_worker, encode
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import SOCKET_VARIABLE, WorkerLink
from hypothesis import given
from hypothesis import strategies as st


def test_steps_of_90_seconds_have_minutes_to_notice_that_their_round_is_over() -> None:
    times = StepTimes()
    for step in range(1, 4):
        times.add(1, step, 90.0 * step)
    assert times.long == 90.0
    assert times.patience(30.0) == 360.0


def test_short_steps_have_the_least_and_the_first_one_more() -> None:
    times = StepTimes()
    assert times.patience(30.0) == 120.0, "it may still compile"
    times.add(1, 1, 100.0)
    times.add(1, 11, 101.0)
    assert times.long == pytest.approx(0.1)
    assert times.patience(30.0) == 30.0


@given(
    st.lists(st.floats(0.1, 100.0), min_size=2, max_size=3 * RECENT),
    st.integers(0, 3 * RECENT),
    st.floats(1000.0, 10000.0),
)
def test_a_single_long_evaluation_stretches_no_patience(
    usual: list[float], at: int, evaluation: float
) -> None:
    seconds = [*usual[:at], evaluation, *usual[at:]]
    times, now = StepTimes(), 0.0
    times.add(1, 0, now)
    for step, one in enumerate(seconds, 1):
        now += one
        times.add(1, step, now)
    assert times.long < 101.0
    assert times.patience(30.0) < 4 * 101.0


def test_evaluations_every_few_steps_are_usual() -> None:
    times, now = StepTimes(), 0.0
    for step in range(1, 40):
        now += 90.0 if step % 8 == 0 else 1.0
        times.add(1, step, now)
    assert times.patience(30.0) == 360.0


def test_only_steps_of_one_round_are_compared_and_old_ones_are_forgotten() -> None:
    times = StepTimes()
    times.add(1, 10, 100.0)
    times.add(2, 5, 500.0)
    times.add(3, 11, 900.0)
    assert times.long == 0.0
    times.add(3, 12, 950.0)
    for step in range(RECENT):
        times.add(3, 13 + step, 951.0 + step)
    assert times.long == 1.0


def identity(**environment: str) -> Identity:
    return Identity.read("h:1", 1, 2, "run", None, None, environment, [])


def test_the_pods_grace_and_machine_come_from_the_operator() -> None:
    found = identity(VOLCANO_ELASTIC_GRACE_SECONDS="600", VOLCANO_ELASTIC_NODE_NAME="gpu-7")
    assert (found.grace, found.node) == (600.0, "gpu-7")
    assert (identity().grace, identity().node) == (30.0, socket.gethostname())


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_a_grace_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="VOLCANO_ELASTIC_GRACE_SECONDS: expected"):
        identity(VOLCANO_ELASTIC_GRACE_SECONDS=text)


@pytest.mark.parametrize(("at_once", "stop"), [(True, 6), (False, 7)])
def test_a_rank_asked_to_stop_at_once_holds_at_the_end_of_its_step(
    at_once: bool, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "agent"))
        server.listen()
        monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent"))
        link = WorkerLink.from_environment()
        agent, _ = server.accept()
    with agent, agent.makefile("rwb", buffering=0) as lines:
        assert isinstance(decode_from_worker(lines.readline()), message.Hello)
        assert link.boundary(5) is Order.GO  # step 6 is in progress
        assert decode_from_worker(lines.readline()) == message.Stepped()
        lines.write(encode(message.AskStep(fence=1, at_once=at_once)))
        assert decode_from_worker(lines.readline()) == message.StepInProgress(fence=1, step=6)
        if not at_once:
            assert link.boundary(6) is Order.GO
        lines.write(encode(message.StopAt(fence=1, step=stop, leaving=False, commit=False)))
        assert link.boundary(stop) is Order.FENCE
        assert decode_from_worker(lines.readline()) == message.Stopped()
        link._closing = True  # its agent goes, and it should not
