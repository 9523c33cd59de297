"""Rounds in a job's status: what is kept of what coordinators tell, and for how long."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from elastic_trainer.coordinator.last_word import last_word as last_word_of
from hypothesis import given
from hypothesis import strategies as st

from tests.operator.measuring import job, worker_zero
from volcano_elastic.operator import last_word
from volcano_elastic.operator.round_history import MOST, merged, to_write
from volcano_elastic.operator.round_report import ReportedRound, read

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def made(number: int, reason: str = "start", **more: Any) -> ReportedRound:
    return ReportedRound(number, 4, NOW + timedelta(minutes=number), reason, **more)


def test_a_round_is_written_when_it_is_new_and_when_its_pause_or_loss_is_known() -> None:
    one = made(1, first=0, last=5)
    known = to_write((), [one])
    assert known is not None and known[0]["lastStep"] == 5
    moved = replace(one, last=9)
    assert to_write(known, [moved]) is None, "steps alone are no news"
    ended = replace(moved, lost=2)
    known = to_write(known, [ended])
    assert known is not None and (known[0]["lastStep"], known[0]["lost"]) == (9, 2)
    lost = "workers 2 and 3 on gpu-7 lost (silent)"
    known = to_write(known, [ended, made(2, lost)])
    assert known is not None and "pauseSeconds" not in known[1]
    known = to_write(known, [ended, made(2, lost, pause=0.07, first=10, last=11)])
    assert known is not None
    assert (known[1]["pauseSeconds"], known[1]["firstStep"]) == (0.07, 10)
    assert known[1]["time"] == "2026-01-01T12:02:00.000000Z"


def test_a_coordinator_that_began_anew_takes_nothing_away() -> None:
    known = merged((), [made(1, lost=1), made(2, "worker 3 lost", pause=0.5, first=10)])
    adopted = ReportedRound(2, 3, NOW + timedelta(minutes=9), "worker 3 lost", first=40, last=50)
    after = merged(known, [adopted, made(3, "worker 3 joined")])
    assert [one["round"] for one in after] == [1, 2, 3]
    assert after[0]["lost"] == 1
    assert (after[1]["pauseSeconds"], after[1]["firstStep"], after[1]["lastStep"]) == (0.5, 10, 50)
    anew = ReportedRound(1, 2, NOW + timedelta(hours=1), "start")
    assert [one["round"] for one in merged(after, [anew])] == [1, 2, 3, 1]


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_clock_that_is_set_makes_no_round_twice(step: timedelta) -> None:
    reported = [made(1, lost=1), made(2, "worker 3 lost"), made(3, "worker 3 joined")]
    known = merged((), reported)
    moved = [replace(one, made=one.made + step) for one in reported]
    assert merged(known, moved) == known
    went_on = [replace(moved[1], pause=0.5), moved[2], replace(made(4, "start"), made=NOW + step)]
    after = merged(known, went_on)
    assert [one["round"] for one in after] == [1, 2, 3, 4]
    assert after[1]["pauseSeconds"] == 0.5


def test_a_clock_may_be_set_by_thousands_of_years() -> None:
    known = merged((), [ReportedRound(2, 1, datetime.fromtimestamp(0, UTC))])
    moved = [ReportedRound(n, 1, datetime.fromtimestamp(t, UTC)) for n, t in ((1, 0), (2, 9e10))]
    assert merged(known, moved) == known
    back = [ReportedRound(n, 1, datetime.fromtimestamp(t, UTC)) for n, t in ((1, 9e10), (3, 0))]
    assert [one["round"] for one in merged(known, back)] == [2, 1, 3]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 10**6), st.sampled_from("ab"))))
def test_whatever_is_told_few_rounds_are_kept_and_told_again_they_stay(told: Any) -> None:
    reported = [
        ReportedRound(number, 1, NOW + timedelta(seconds=later), reason)
        for number, later, reason in sorted(told)
    ]
    once = merged((), reported)
    assert len(once) <= MOST
    assert merged(once, reported[-1:]) == once


@given(
    st.lists(st.tuples(st.integers(0, 600), st.sampled_from("ab")), max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.integers(-4000, 4000)), max_size=6),
)
def test_the_newest_rounds_are_kept_once_each_however_clocks_are_set(
    made_after: Any, answers: Any
) -> None:
    """Each answer has a count of rounds, and how many seconds its clock is ahead."""
    rounds, at, known, told = list[ReportedRound](), NOW, list[dict[str, Any]](), 0
    for seconds, reason in made_after:
        at += timedelta(seconds=seconds)
        rounds.append(ReportedRound(len(rounds) + 1, 1, at, reason))
    for count, ahead in answers:
        told = max(told, count)
        moved = [replace(one, made=one.made + timedelta(seconds=ahead)) for one in rounds[:told]]
        known = merged(known, moved)
        assert [one["round"] for one in known] == [one.number for one in moved][-MOST:]
        assert merged(known, moved) == known


def _told(**more: Any) -> dict[str, Any]:
    rounds = [
        {"round": n, "world": 2, "time": 1e9 + n, "reason": "worker 1 joined; " * 6, "lost": 0}
        | {"first_step": 10 * n, "last_step": 10 * n + 9, "pause_seconds": 0.1}
        for n in range(1, 31)
    ]
    spent = {"id": "x", "milliseconds": {}}
    progress = {"samples": 900, "total": 900, "remaining_seconds": 0.0}
    told = {"job": "team/a", "round": 30, "rounds": rounds, "goodput": spent}
    return told | {"metrics": {}, "progress": progress} | more


def _ended_pod(message: str) -> dict[str, Any]:
    pod = worker_zero(phase="Succeeded")
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"message": message}}}]
    return pod


def _ended_job(condition: str, percentage: int) -> dict[str, Any]:
    obj = job()
    obj["status"]["conditions"] = [{"type": condition, "status": "True"}]
    progress = {"progressPercentage": percentage, "estimatedRemainingSeconds": 7}
    obj["status"]["elastic"]["progress"] = progress
    return obj


def test_what_a_coordinator_leaves_is_read_from_its_pod_at_the_jobs_end() -> None:
    text = last_word_of(_told())
    obj = _ended_job("Succeeded", 90)
    assert len(text.encode()) <= 4096 and last_word.is_one(text)
    word = last_word.read(obj, [_ended_pod("KeyError: 'x'"), _ended_pod(text)])
    assert word is not None and word.rounds == read(_told()["rounds"])[-10:]
    found = last_word.to_write(obj, word, NOW)
    assert [one["round"] for one in found["rounds"]] == list(range(21, 31))
    assert found["progress"]["progressPercentage"] == 100
    assert found["progress"]["estimatedRemainingSeconds"] == 0
    obj["status"]["elastic"] |= found
    assert last_word.to_write(obj, word, NOW) == {}, "once"


def test_long_reasons_and_figures_leave_the_newest_rounds_in_the_message() -> None:
    told = _told(metrics={f"{n:x>63}": "1" * 63 for n in range(16)})
    for one in told["rounds"]:
        one["reason"] = "ä" * 190
    text = last_word_of(told)
    assert len(text.encode()) <= 4096
    assert json.loads(text)["rounds"][-1:] in ([], [{**told["rounds"][-1]}])
    assert json.loads(last_word_of(told | {"rounds": [], "metrics": {"x": "1" * 9999}}))


def test_how_far_a_job_came_is_read_where_there_was_no_room_for_rounds() -> None:
    obj, text = _ended_job("Succeeded", 90), last_word_of(_told(rounds=[]))
    word = last_word.read(obj, [_ended_pod('{"job":'), _ended_pod(text)])
    assert last_word.to_write(obj, word, NOW)["progress"]["progressPercentage"] == 100
    with_rounds = last_word_of(_told(progress=None))
    word = last_word.read(obj, [_ended_pod(text), _ended_pod(with_rounds), _ended_pod(text)])
    assert word is not None and word.rounds


def test_how_far_a_job_came_is_unset_where_nobody_told_and_kept_where_it_failed() -> None:
    unset = {"progressPercentage": None, "estimatedRemainingSeconds": None}
    assert last_word.to_write(_ended_job("Succeeded", 90), None, NOW) == {"progress": unset}
    assert last_word.to_write(_ended_job("Succeeded", 100), None, NOW) == {}
    assert last_word.to_write(_ended_job("Failed", 90), None, NOW) == {}
    assert last_word.read(job(), [_ended_pod('{"job":"team/other"}'), _ended_pod("{")]) is None
