"""Tables under real torchrun agents: they end as in an undisturbed run."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.embeddings import table_job
from tests.elastic_trainer.loop.devices import DEVICES, VARIABLE
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

HOLDERS = 6
"""The most at a time."""

PATIENT = {"VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT": "60"}
"""A killed worker is noticed by its agent; on a busy machine none but that one is to be lost."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(folder, Path(table_job.__file__).read_text(), f"1:{HOLDERS}")
    yield job
    job.close()


@pytest.fixture
def minutes(request: pytest.FixtureRequest) -> None:
    """Skips a test that takes some, unless they are asked for."""
    if not request.config.getoption("--long"):
        pytest.skip("takes minutes: --long")


def end(folder: Path) -> dict[str, Any]:
    """Return what the last round's ranks wrote, their parts of the tables put together."""
    first = json.loads((folder / "end-0.json").read_text())
    ranks = [
        json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(first["world"])
    ]
    assert all(one["dense"] == first["dense"] for one in ranks)
    tables = {}
    for name in first["tables"]:
        columns: list[list[Any]] = [[] for _ in first["tables"][name]]
        for one in ranks:
            for column, part in zip(columns, one["tables"][name], strict=True):
                column.extend(part)
        rows = sorted(zip(*columns[:5], strict=True), key=lambda row: row[0])
        assert len({row[0] for row in rows}) == len(rows), f"{name} has rows twice"
        tables[name] = rows, sorted(zip(*columns[5:], strict=True))
    return {"tables": tables, "dense": first["dense"], "steps": first["steps"]}


def assert_undisturbed(
    job: Job, folder: Path, train: Callable[..., None] = table_job.train
) -> None:
    found = end(job.folder)
    folder.mkdir()
    train(folder, last_step=found["steps"], every=1_000_000)
    expected = end(folder)
    assert found["steps"] == expected["steps"]
    close(found["dense"], expected["dense"])
    for name, (rows, candidates) in expected["tables"].items():
        mine, others = found["tables"][name]
        # ids, how often seen, and when last: exactly
        assert [(row[0], row[3], row[4]) for row in mine] == [
            (row[0], row[3], row[4]) for row in rows
        ]
        assert others == candidates
        for column in (1, 2):
            close([row[column] for row in mine], [row[column] for row in rows])
    assert expected["tables"]["users"][1], "no candidates: the test shows less than it says"
    assert len(expected["tables"]["items"][0]) > 300


def close(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        pair = (torch.tensor(part, dtype=torch.float64) for part in (one, other))
        torch.testing.assert_close(*pair, rtol=0, atol=1e-12)


def disturb(job: Job, events: list[str], draw: random.Random, *, tell: bool = False) -> None:
    """Let nodes join, leave and lose their workers, then let the job come to its end.

    Args:
        tell: the ranks hold tables, and say what they hold.
    """
    job.start(0, restarts=100)
    told = job.stepping(1)
    running = [0]
    for event in events:
        if event == "join":
            index = next(one for one in range(HOLDERS) if one not in running)
            job.start(index, restarts=100)
            running.append(index)
        elif event == "leave":
            index = draw.choice(running[1:])
            job.agents[index].send_signal(signal.SIGTERM)
            running.remove(index)
            job.wait(index)
        else:
            os.kill(told["pids"][str(draw.choice(running))][0], signal.SIGKILL)
        told = job.stepping(len(running), after_round=told["round"])
    if tell:
        job.until(
            "all say what they hold",
            lambda told: told["tables"]["items"]["holders"] == len(running),
        )
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in running] == [0] * len(running), job.logs()


@pytest.mark.parametrize("device", DEVICES)
def test_tables_end_as_undisturbed_over_joins_leaves_and_kills(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv(VARIABLE, device)
    disturb(job, ["join", "join", "kill", "leave", "join", "kill"], random.Random(20), tell=True)
    assert_undisturbed(job, tmp_path / "undisturbed")


@pytest.mark.usefixtures("minutes")
@pytest.mark.parametrize("seed", range(4))
def test_tables_end_as_undisturbed_over_25_events_of_up_to_six_holders(
    job: Job, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    events: list[str] = []
    for _ in range(25):
        nodes = 1 + events.count("join") - events.count("leave")
        kinds = ["kill", *["join"] * (nodes < HOLDERS), *["leave"] * (nodes > 1)]
        events.append("join" if len(events) < HOLDERS - 1 else draw.choice(kinds))
    disturb(job, events, draw, tell=True)
    assert_undisturbed(job, tmp_path / "undisturbed")


@pytest.mark.usefixtures("minutes")
@pytest.mark.parametrize("seed", range(6))
def test_leaves_and_joins_that_follow_at_any_moment_cost_no_row_and_no_step(
    job: Job, tmp_path: Path, seed: int
) -> None:
    """Also between two rounds, or before a round has made a step."""
    draw = random.Random(seed)
    job.start(0, 1, 2, environment=PATIENT)
    job.stepping(3)
    running, leaving = [0, 1, 2], list[int]()
    for _ in range(20):
        there = [one for one in leaving if job.agents[one].poll() is None]
        free = [one for one in range(HOLDERS) if one not in (*running, *there)]
        if len(running) > 1 and (not free or draw.random() < 0.5):
            index = draw.choice(running[1:])
            job.agents[index].send_signal(signal.SIGTERM)
            running.remove(index)
            leaving.append(index)
        elif free:
            job.start(free[0], environment=PATIENT)
            running.append(free[0])
        if draw.random() < 0.3:
            job.stepping(len(running))
        else:
            time.sleep(draw.uniform(0.0, 1.0))
    job.stepping(len(running))
    for index in set(leaving) - set(running):
        job.wait(index)
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in running] == [0] * len(running), job.logs()
    assert not went_back(job)
    assert_undisturbed(job, tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("point", "backup"),
    [("apply", False), ("push", True), ("apply", True), ("save", True)],
    ids=["apply", "push-backup", "apply-backup", "save-backup"],
)
def test_a_holder_that_is_killed_costs_no_exactness_and_with_a_backup_no_step(
    job: Job, tmp_path: Path, point: str, backup: bool
) -> None:
    environment = {"DIE_AT": point, **PATIENT, **({"BACKUP": "1"} if backup else {})}
    job.start(0, 1, 2, environment=environment)
    job.until("rank 1 is killed", lambda told: (job.folder / "died").exists())
    job.stepping(3, after_round=job.wait_for_status()["round"] - 1)
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in range(3)] == [0, 0, 0], job.logs()
    assert not (backup and went_back(job))
    assert_undisturbed(job, tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("point", "backup"),
    [("join", False), ("parts", False), ("giver", False), ("giver", True)],
    ids=["newcomer-at-once", "newcomer", "giver", "giver-backup"],
)
def test_who_is_killed_while_buckets_go_to_a_newcomer_costs_no_exactness(
    job: Job, tmp_path: Path, point: str, backup: bool
) -> None:
    """The newcomer dies as they move at once, or either end between two parts."""
    environment = {"DIE_AT": point, **PATIENT, **({"BACKUP": "1"} if backup else {})}
    job.start(0, 1, environment=environment)
    told = job.stepping(2)
    job.start(2, environment=environment)
    job.until("one is killed", lambda told: (job.folder / "died").exists())
    job.stepping(3, after_round=told["round"] + (point != "join"))
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in range(3)] == [0, 0, 0], job.logs()
    # Between two parts each end holds rows that nobody else has, but a backup.
    assert not (went_back(job) and (backup or point == "join"))
    assert_undisturbed(job, tmp_path / "undisturbed")


@pytest.mark.parametrize("point", ["leaver", "stayer"])
def test_who_is_killed_while_a_leaver_gives_its_buckets_costs_no_exactness(
    job: Job, tmp_path: Path, point: str
) -> None:
    environment = {"DIE_AT": point, "BACKUP": "1", **PATIENT}
    job.start(0, 1, 2, environment=environment)
    told = job.stepping(3)
    job.agents[2].send_signal(signal.SIGTERM)
    job.until("one is killed", lambda told: (job.folder / "died").exists())
    job.wait(2)
    job.stepping(2, after_round=told["round"])
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in range(2)] == [0, 0], job.logs()
    assert not went_back(job), "who leaves takes part in another round before it goes"
    assert_undisturbed(job, tmp_path / "undisturbed")


def test_who_begins_to_leave_while_it_gets_a_leavers_rows_takes_none_along(
    job: Job, tmp_path: Path
) -> None:
    environment = {"DIE_AT": "second leaver", **PATIENT}
    job.start(0, 1, 2, environment=environment)
    told = job.stepping(3)
    job.agents[2].send_signal(signal.SIGTERM)
    job.until("some of its rows are with rank 1", lambda told: (job.folder / "has rows").exists())
    job.agents[1].send_signal(signal.SIGTERM)
    (job.folder / "told").touch()
    assert [job.wait(2), job.wait(1)] == [0, 0], job.logs()
    job.stepping(1, after_round=told["round"])
    (job.folder / "enough").touch()
    assert job.wait(0) == 0, job.logs()
    assert not went_back(job)
    assert_undisturbed(job, tmp_path / "undisturbed")


def test_who_begins_to_leave_between_two_rounds_takes_no_rows_along(
    job: Job, tmp_path: Path
) -> None:
    environment = {"DIE_AT": "between", "BACKUP": "1", **PATIENT}
    job.start(0, 1, 2, environment=environment)
    told = job.stepping(3)
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    job.until("the others wait for one", lambda told: (job.folder / "between").exists())
    job.agents[2].send_signal(signal.SIGTERM)
    job.until("it leaves", lambda told: 2 in told["leaving"] or job.agents[2].poll() is not None)
    (job.folder / "told").touch()
    assert job.wait(2) == 0, job.logs()
    job.stepping(2, after_round=told["round"])
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    assert not went_back(job)
    assert_undisturbed(job, tmp_path / "undisturbed")


def test_who_stays_and_has_no_place_in_the_next_round_gives_its_rows_to_who_has(
    job: Job, tmp_path: Path
) -> None:
    job.start(0, 1, 2, 3, environment={"VOLCANO_ELASTIC_NODE_UNIT": "2", **PATIENT})
    told = job.stepping(4)
    job.agents[3].send_signal(signal.SIGTERM)
    assert job.wait(3) == 0, job.logs()
    job.stepping(2, after_round=told["round"])
    (job.folder / "enough").touch()
    assert [job.wait(0), job.wait(1), job.wait(2)] == [0, 0, 0], job.logs()
    assert not went_back(job)
    assert_undisturbed(job, tmp_path / "undisturbed")


def test_after_a_loss_who_has_no_place_in_the_next_round_gives_its_rows_first(
    job: Job, tmp_path: Path
) -> None:
    """Node 3 has the only copies of the lost one's rows."""
    environment = {"VOLCANO_ELASTIC_NODE_UNIT": "2", "BACKUP": "1", "EVERY": "1000000", **PATIENT}
    job.start(0, 1, 2, 3, environment=environment)
    told = job.stepping(4)
    os.kill(told["pids"]["2"][0], signal.SIGKILL)
    job.stepping(4, after_round=told["round"])
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in range(4)] == [0] * 4, job.logs()
    assert not went_back(job)
    assert_undisturbed(job, tmp_path / "undisturbed")


def let_the_survivor_go(job: Job) -> tuple[int, int]:
    """Lose one of two nodes, and have the other leave while it waits; return the newest steps that
    were made and committed."""
    os.killpg(job.agents[1].pid, signal.SIGKILL)
    job.until("one waits for others", lambda told: told["phase"] == "forming")
    job.agents[0].send_signal(signal.SIGTERM)
    assert job.wait(0) == 0, job.logs()
    last = max(int(n) for path in job.folder.glob("steps-*") for n in path.read_text().split())
    newest = Storage(job.folder / "commits").newest()
    assert newest is not None, job.logs()
    return last, newest.step


def test_a_lone_survivor_with_all_rows_commits_them_before_it_goes(
    job: Job, tmp_path: Path
) -> None:
    job.nodes = f"2:{HOLDERS}"
    environment = {"BACKUP": "1", "EVERY": "1000000", **PATIENT}
    job.start(0, 1, environment=environment)
    job.stepping(2)
    last, committed = let_the_survivor_go(job)
    assert committed == last, job.logs()
    job.start(0, 2, environment=environment)
    assert job.stepping(2)["rounds"][-1]["first_step"] == last + 1
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 2)] == [0, 0], job.logs()
    assert_undisturbed(job, tmp_path / "undisturbed")


OWN_LOOP = {"OWN_LOOP": "1", **PATIENT}


def test_tables_in_a_loop_of_ones_own_end_as_undisturbed_over_leaves_joins_and_kills(
    job: Job, tmp_path: Path
) -> None:
    job.start(0, 1, restarts=100, environment=OWN_LOOP)
    told = job.stepping(2)
    job.agents[1].send_signal(signal.SIGTERM)
    assert job.wait(1) == 0, job.logs()
    told = job.stepping(1, after_round=told["round"])
    job.start(2, restarts=100, environment=OWN_LOOP)
    told = job.stepping(2, after_round=told["round"])
    os.kill(told["pids"]["2"][0], signal.SIGKILL)
    told = job.stepping(2, after_round=told["round"])
    job.start(3, restarts=100, environment=OWN_LOOP)
    told = job.stepping(3, after_round=told["round"])
    os.kill(told["pids"]["0"][0], signal.SIGKILL)
    job.stepping(3, after_round=told["round"])
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 2, 3)] == [0] * 3, job.logs()
    assert_undisturbed(job, tmp_path / "undisturbed", table_job.train_own_loop)


def test_a_lone_survivor_of_a_loop_of_ones_own_leaves_the_newest_save_in_storage(
    job: Job, tmp_path: Path
) -> None:
    """Its processes ended with the round: what was trained since that save is gone already."""
    job.nodes = f"2:{HOLDERS}"
    job.start(0, 1, restarts=100, environment={"EVERY": "10", **OWN_LOOP})
    job.until("there are commits", lambda told: told["committed_step"] >= 20)
    last, committed = let_the_survivor_go(job)
    assert committed == last - last % 10, job.logs()
    job.start(0, 2, restarts=100, environment=OWN_LOOP)
    assert job.stepping(2)["rounds"][-1]["first_step"] == committed + 1
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 2)] == [0, 0], job.logs()
    assert_undisturbed(job, tmp_path / "undisturbed", table_job.train_own_loop)


@pytest.mark.parametrize("point", ["push", "apply", "save"])
def test_a_kill_within_a_step_or_a_save_of_a_loop_of_ones_own_costs_no_exactness(
    job: Job, tmp_path: Path, point: str
) -> None:
    job.start(0, 1, environment={"DIE_AT": point, **OWN_LOOP})
    job.until("rank 1 is killed", lambda told: (job.folder / "died").exists())
    job.stepping(2, after_round=job.wait_for_status()["round"] - 1)
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in range(2)] == [0, 0], job.logs()
    assert_undisturbed(job, tmp_path / "undisturbed", table_job.train_own_loop)


def test_a_damaged_table_costs_a_loop_of_ones_own_the_steps_since_the_commit_before(
    job: Job, tmp_path: Path
) -> None:
    """Also where the rest of its commit is in the memory of all nodes."""
    job.start(0, 1, environment=OWN_LOOP)
    job.until("there are commits", lambda told: told["committed_step"] >= 21)
    for index in (0, 1):
        os.killpg(job.agents[index].pid, signal.SIGKILL)
        job.wait(index)
    newest = max(
        (job.folder / "commits").glob("tables-*-*"), key=lambda one: int(one.name.split("-")[2])
    )
    for file in newest.glob("*.pt"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    job.start(0, 1, environment=OWN_LOOP)
    told = job.stepping(2)
    step = int(newest.name.split("-")[2])
    assert told["rounds"][-1]["first_step"] <= step, "it goes on from the damaged one"
    assert "is damaged" in job.logs()
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    assert_undisturbed(job, tmp_path / "undisturbed", table_job.train_own_loop)


def went_back(job: Job) -> bool:
    """Tell whether a process that lived on did a step anew that it had applied."""
    logs = [path.read_text().split() for path in job.folder.glob("steps-*")]
    return any(int(b) <= int(a) for log in logs for a, b in itertools.pairwise(log))
