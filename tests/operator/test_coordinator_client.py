"""A coordinator's answer is read as far as it makes sense: operator/coordinator_client.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.operator.measuring import answer, job, worker_zero
from tests.pytorchjob.world import job_object
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.operator.coordinator_client import Report, endpoint, owed, read

Object = dict[str, Any]


def test_only_a_running_coordinator_of_ours_is_asked() -> None:
    ours = parse(job())
    assert endpoint(ours, worker_zero()) == "http://10.0.0.1:23457"
    assert endpoint(ours, worker_zero("fd00::1")) == "http://[fd00::1]:23457"
    assert endpoint(parse(job(rdzvPort=1234)), worker_zero()) == "http://10.0.0.1:1235"
    assert endpoint(ours, worker_zero(phase="Pending")) is None
    assert endpoint(ours, None) is None
    assert endpoint(parse(job(backend="c10d")), worker_zero()) is None
    assert endpoint(parse(job(rdzvHost="elsewhere")), worker_zero()) is None, "not ours to ask"
    assert endpoint(parse(job(rdzvHost="a-worker-0")), worker_zero()), "it says what is so anyway"


def test_speeds_and_the_usual_pause_are_read() -> None:
    rounds = [{"pause_seconds": pause} for pause in (None, 30, 0.52, 0.48, 0.5, 0.5, 9)]
    found = read(answer(speeds={"1": 101.23, "4": 404}, rounds=rounds), parse(job()))
    assert found == Report({1: 101.0, 4: 404.0}, timedelta(seconds=0.5))


def test_the_master_is_no_worker() -> None:
    obj = job_object(elastic={"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}, master=True)
    assert read(answer(speeds={"1": 5, "3": 12}), parse(obj)).speeds == {2: 12.0}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"not JSON",
        answer(job="team/b", speeds={"1": 5}),
        answer(speeds=[1], rounds={"a": 1}),
        answer(speeds={"-1": 5, "0": 5, "x": 5, "9": 5, "²": 5, "1": -3, "2": "fast", "3": True}),
        b'{"job": "team/a", "speeds": {"1": NaN, "2": Infinity}}',
        answer(rounds=[None, {"pause_seconds": "long"}, {}]),
    ],
)
def test_an_answer_that_makes_no_sense_says_nothing(body: bytes) -> None:
    assert read(body, parse(job())) == Report()


def test_a_coordinator_is_owed_the_range_when_it_goes_by_another() -> None:
    def nodes(told: Any, obj: Object) -> tuple[int, int] | None:
        parsed = parse(obj)
        return owed(parsed, read(answer(range=told), parsed))

    policy: Object = {"min": 1, "max": 4, "rdzvBackend": "volcano-elastic"}
    for ends in ((1, 4), (2, 4), (1, 3)):
        told = {"min": ends[0], "max": ends[1]}
        assert nodes(told, job()) == (None if ends == (1, 4) else (1, 4))
        master = job_object(elastic=policy, master=True)
        assert nodes(told, master) == (2, 5), "the Master is a node too"
    assert nodes({"min": 2, "max": 5}, job_object(elastic=policy, master=True)) is None
    for nonsense in (None, [1, 2], {"min": 1}, {"min": "1", "max": 9}):
        assert nodes(nonsense, job()) is None, "a trainer of an older version cannot be told"
    assert (
        owed(parse(job()), read(answer(job="team/b", range={"min": 9, "max": 9}), parse(job())))
        is None
    )


def test_who_is_connected_is_heard_whether_it_trains_or_not() -> None:
    def heard(**more: Any) -> frozenset[int] | None:
        return read(answer(**more), parse(job())).heard

    assert heard(connected=[0, 2], pids={"0": [7]}) == {0, 2}
    assert heard(pids={"0": [7]}) == {0}, "of a trainer of an older version"
    assert heard(connected=["0", -1, True, 10**9, 1]) == {1}
    assert heard() is None
