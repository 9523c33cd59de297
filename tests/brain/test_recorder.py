"""A history that fails, hangs or refuses costs advice, and neither time nor what others told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.brain.world import NOW, amounts
from tests.operator.process import job
from volcano_elastic.api.pytorchjob_shape import USER_ANNOTATION
from volcano_elastic.brain.history.asking import Asking
from volcano_elastic.brain.history.database import History
from volcano_elastic.brain.metrics import Metrics
from volcano_elastic.brain.recorder import Recorder
from volcano_elastic.database.database import DatabaseError, RefusedError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(f"sqlite:///{tmp_path / 'history.db'}")


def fails(took: float, clock: Clock) -> Callable[[], int]:
    def question() -> int:
        clock.now += took
        raise DatabaseError("gone")

    return question


@pytest.mark.parametrize(
    ("took", "rests"), [(0.001, 1.0), (0.5, 5.0), (10.0, 60.0)], ids=["at once", "soon", "late"]
)
async def test_after_a_failure_nothing_is_asked_for_a_while(
    history: History, took: float, rests: float
) -> None:
    clock, lost = Clock(), list[str]()
    asking = Asking(history, Metrics(), lambda: lost.append("lost"), clock=clock)
    assert await asking.ask(lambda: 1) == 1
    assert await asking.ask(fails(took, clock)) is None
    clock.now += 0.99 * rests
    assert await asking.ask(lambda: pytest.fail("asked too soon")) is None
    clock.now += 0.02 * rests
    assert await asking.ask(lambda: 2) == 2 and lost == ["lost"]


async def test_a_history_that_hangs_is_not_asked_until_it_has_answered(history: History) -> None:
    clock, go, answered = Clock(), threading.Event(), threading.Event()
    asking = Asking(history, Metrics(), lambda: None, clock=clock, patience=0.05)
    await asking.ask(lambda: 0)  # makes the tables

    def hangs() -> int:
        go.wait(60)
        answered.set()
        return 1

    assert await asking.ask(hangs) is None
    clock.now += 100
    assert await asking.ask(lambda: pytest.fail("two at once")) is None
    assert not answered.is_set()
    go.set()
    while (found := await asking.ask(lambda: 2)) is None:
        clock.now += 100
        await asyncio.sleep(0.01)
    assert found == 2


async def test_what_is_refused_is_no_failure_of_the_database(history: History) -> None:
    asking = Asking(history, Metrics(), lambda: pytest.fail("nothing is lost"))

    def refuses() -> int:
        raise RefusedError("NUL")

    with pytest.raises(RefusedError):
        await asking.ask(refuses)
    assert await asking.ask(lambda: 1) == 1


def made(uid: str, **annotations: str) -> dict[str, Any]:
    found = job(uid, 1, 1)
    meta = {"uid": uid, "namespace": "default", "creationTimestamp": "2026-01-01T11:00:00Z"}
    found["metadata"] |= meta | {"annotations": annotations}
    return found


def pod(uid: str) -> dict[str, Any]:
    kind, index = "replica-type", "replica-index"
    labels = {f"training.kubeflow.org/{kind}": "worker", f"training.kubeflow.org/{index}": "0"}
    owners = [{"uid": uid}]
    meta = {"name": f"{uid}-worker-0", "namespace": "default", "labels": labels}
    return {"metadata": meta | {"ownerReferences": owners}, "spec": {"containers": []}}


async def sampled(recorder: Recorder, uid: str, gib: float) -> None:
    used = {("default", f"{uid}-worker-0"): amounts(1, gib)}
    await recorder.pods_measured([pod(uid)], used, {})


async def test_one_run_that_is_refused_keeps_no_other_out(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(history, lambda: NOW, timedelta(days=1))
    for _ in range(3):
        await recorder.job_changed(made("odd", **{USER_ANNOTATION: "\ud800"}))
        await sampled(recorder, "odd", 1)
    await recorder.job_changed(made("sound", **{USER_ANNOTATION: "ann"}))
    assert [run.name for run in history.runs()] == ["sound"]
    (told,) = caplog.messages
    assert told.startswith("default/odd is not in the history: ")


async def test_what_was_measured_before_is_kept_though_it_could_not_be_read_at_the_start(
    tmp_path: Path, history: History
) -> None:
    first = Recorder(history, lambda: NOW, timedelta(days=1))
    await first.job_changed(made("a"))
    await sampled(first, "a", 8)
    file, away = tmp_path / "history.db", tmp_path / "away"
    file.rename(away)
    file.mkdir()
    second = Recorder(history, lambda: NOW, timedelta(days=1))
    await second.job_changed(made("a"))
    await sampled(second, "a", 2)
    file.rmdir()
    away.rename(file)
    await asyncio.sleep(1.1)
    await sampled(second, "a", 2)
    (run,) = history.runs()
    assert run.busiest["Worker"].memory == amounts(1, 8).memory


def test_a_server_that_never_answers_is_given_up_in_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://brain@127.0.0.1:{silent.getsockname()[1]}/history"
        history = History(f"{url}?connect_timeout=2")
        with pytest.raises(DatabaseError, match="timeout expired"):
            history.runs()
        history.close()
