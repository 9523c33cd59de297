"""A coordinator's status tells of rounds, speeds and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_trainer.coordinator.last_word import leave_last_word
from elastic_trainer.coordinator.status import metrics, progress, status
from elastic_trainer.coordinator.transitions import TRANSITIONS, as_table
from elastic_trainer.failures.record import KEPT, with_failure
from elastic_trainer.metrics.exposition import Metric, exposition
from elastic_trainer.metrics.table_load import TableLoad, encoded
from elastic_trainer.protocol.message import (
    Committed,
    Failed,
    Progress,
    Reported,
    Tables,
    WorkersFailed,
)

from tests.elastic_trainer.coordinator.world import Job


def failure(number: int, rank: int, time: float) -> Failed:
    return Failed(number, rank, rank, 0, 100 + rank, 1, "ValueError: x", "stack", time)


def test_failures_are_told_by_time_once_and_with_their_round() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", failure(1, 1, 20.25))
    job.say("a0", failure(1, 0, 20.5), failure(1, 0, 20.5))
    job.say("a1", failure(1, 1, 20.25))
    told = status(job.state, "ns/job", job.now, 0.0)
    assert [(f["rank"], f["time"]) for f in told["failures"]] == [(1, 20.25), (0, 20.5)]
    assert told["failures_total"] == 2
    json.dumps(told)


def test_of_many_failures_each_round_keeps_its_first() -> None:
    known: tuple[Failed, ...] = (failure(1, 0, 1.0),)
    for rank in range(3 * KEPT):
        known = with_failure(known, failure(2, rank, 10.0 + rank))
    known = with_failure(known, failure(3, 0, 9999.0))
    assert len(known) == KEPT
    assert {1, 2, 3} == {one.round for one in known}
    assert min(one.time for one in known if one.round == 2) == 10.0
    long = with_failure((), Failed(message="m" * 10**6, stack="s" * 10**6))[0]
    assert len(long.message) + len(long.stack) < 6000


def test_agents_are_told_as_connected_while_no_round_runs() -> None:
    job = Job(min_nodes=2, max_nodes=4).running(0, 1, 2)
    job.say("a2", WorkersFailed(1))
    told = status(job.state, "ns/job", job.now, 0.0)
    assert not any(agent.attached for agent in job.state.agents.values())
    assert told["connected"] == [0, 1, 2], "else an operator takes their pods for silent"


def test_status_tells_speed_and_pauses() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for number in range(1, 11):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number), Committed(1, number - 1, size=100 * number))
    job.say("a0", Committed(1, 9, in_memory=True))
    ended = job.now
    job.say("a1", WorkersFailed(1))
    job.join(0, 1)
    job.pass_time(0.2)
    job.say("a0", Progress(2, 10))
    told = status(job.state, "ns/job", job.now, 1000.0 + job.now)
    json.dumps(told)
    assert told["phase"] == "running" and told["world"] == 2 and told["ranks"] == {"0": 0, "1": 1}
    assert told["committed_step"] == 9 and told["step"] == 10
    assert told["commit_bytes"] == 1000, "the newest one's that is in storage"
    assert told["rounds"][1]["pause_seconds"] == pytest.approx(job.now - ended)
    assert told["rounds"][1]["reason"] == "workers of worker 1 failed"


def test_speeds_are_samples_a_second_at_each_size() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0)
    for number in range(1, 32):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number, samples=number * 32))
    assert status(job.state, "ns/job", job.now, 0.0)["speeds"] == {"1": pytest.approx(320)}
    job.join(1)
    job.pass_time(0.5)
    job.say("a0", WorkersFailed(1))
    job.join(0, 1)
    for number in range(32, 36):
        job.pass_time(0.1)
        job.say("a0", Progress(2, number, samples=number * 64))
    found = status(job.state, "ns/job", job.now, 0.0)["speeds"]
    assert found.keys() == {"1"}, "a round that has just begun says nothing of its speed yet"
    for number in range(36, 70):
        job.pass_time(0.1)
        job.say("a0", Progress(2, number, samples=number * 64))
    found = status(job.state, "ns/job", job.now, 0.0)["speeds"]
    assert found == {"1": pytest.approx(320), "2": pytest.approx(640)}


def test_the_newest_figures_of_each_name_are_told() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Reported(("loss", "rate"), ("2", "0.1")), Reported(("loss",), ("nan",)))
    told = status(job.state, "ns/job", job.now, 0.0)
    assert told["metrics"] == {"loss": "nan", "rate": "0.1"}
    job.say("a1", Reported(tuple(f"m{i}" for i in range(16)), ("1",) * 16))
    assert len(status(job.state, "ns/job", job.now, 0.0)["metrics"]) == 16


def test_tables_are_told_as_all_workers_hold_them() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    assert status(job.state, "ns/job", job.now, 0.0)["tables"] == {}
    for agent, rows, rate in (("a0", 3, 30.0), ("a1", 1, 10.0)):
        load = TableLoad(rows=rows, bytes=10 * rows, updated=rows, updated_per_second=rate)
        job.say(agent, Tables((encoded({"items": load}),)))
    job.say("a1", Tables(("nonsense",)))
    told = status(job.state, "ns/job", job.now, 0.0)["tables"]["items"]
    assert (told["rows"], told["bytes"], told["updated"], told["holders"]) == (4, 40, 4, 2)
    assert told["skew"] == 1.5
    text = exposition(metrics(job.state, job.now), {"job": "j"})
    assert 'volcano_elastic_trainer_all_table_rows{job="j",table="items"} 4\n' in text
    assert 'volcano_elastic_trainer_all_table_skew{job="j",table="items"} 1.5\n' in text


def test_progress_is_of_the_newest_step_and_the_rest_as_fast_as_at_the_present_size() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    assert progress(job.state) is None
    job.say("a0", Progress(1, 1, samples=32, total_samples=1312))
    assert progress(job.state) == {"samples": 32, "total": 1312, "remaining_seconds": None}
    for number in range(2, 32):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number, samples=number * 32, total_samples=1312))
    told = {"samples": 992, "total": 1312, "remaining_seconds": pytest.approx(1.0, rel=0.01)}
    assert status(job.state, "ns/job", job.now, 0.0)["progress"] == told
    job.say("a0", WorkersFailed(1))
    job.join(0, 1)
    assert progress(job.state) == told, "between two rounds"
    job.pass_time(0.1)
    job.say("a0", Progress(2, 20, samples=640, total_samples=1312))  # later steps were undone
    assert progress(job.state) == {**told, "samples": 640, "remaining_seconds": pytest.approx(2.1)}
    job.say("a0", Progress(2, 21, samples=672))
    assert progress(job.state) is None, "a script that doesn't say how many there are"


def test_without_known_samples_speeds_are_steps_times_world() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for number in range(1, 32):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number))
    assert status(job.state, "ns/job", job.now, 0.0)["speeds"] == {"2": pytest.approx(20)}


def test_the_phases_are_drawn_in_the_docs_as_the_code_has_them() -> None:
    drawn = Path(__file__).parents[3].joinpath("docs/architecture.md").read_text()
    table = "\n".join(f"  {line}" for line in as_table(TRANSITIONS).splitlines())
    assert table in drawn, "replace the table of docs/architecture.md by transitions.as_table's"


def test_gpu_time_that_a_broken_round_moves_to_another_use_is_no_counter() -> None:
    def training() -> Metric:
        found = metrics(job.state, job.now)
        return next(m for m in found if m.labels == (("use", "productive_training"),))

    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for step in range(1, 20):
        job.say("a0", Progress(1, step))
        job.say("a1", Progress(1, step))
        job.pass_time(1)
    before = training()
    job.say("a0", WorkersFailed(1))
    assert training().value < before.value, "the open step came to nothing"
    assert before.kind == "gauge"


def test_the_last_word_is_left_for_kubernetes_where_nobody_wrote_another(tmp_path: Path) -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0)
    job.say("a0", Progress(1, 9, samples=640, total_samples=640))
    told = status(job.state, "ns/job", job.now, 0.0)
    path = tmp_path / "termination-log"
    leave_last_word(told, path)
    assert not path.exists(), "not in a container"
    path.touch()
    leave_last_word(told, path)
    left = json.loads(path.read_text())
    assert left["progress"]["samples"] == left["progress"]["total"] == 640
    assert [one["last_step"] for one in left["rounds"]] == [9]
    path.write_text("KeyError: 'x'")
    leave_last_word(told, path)
    assert path.read_text() == "KeyError: 'x'"
