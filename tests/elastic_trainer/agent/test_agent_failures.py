"""Failures of workers become known, from a real torchrun and piece by piece."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from elastic_trainer.agent.metrics import Reading, WorkerMetrics
from elastic_trainer.failures.failure import (
    Exit,
    describe,
    keep_logs,
    write_termination_message,
)
from elastic_trainer.launch import log_folder
from elastic_trainer.link import error_file
from elastic_trainer.metrics.exposition import exposition
from elastic_trainer.protocol.message import Failed

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from elastic_trainer import WorkerLink

folder = Path(sys.argv[1])
link = WorkerLink.from_environment()
print("this is attempt", link.round, flush=True)
link.boundary(1, 32)
link.stalled(0.25)
time.sleep(0.3)
link.boundary(2, 64)

def inner():
    raise ValueError("no such luck")

if link.round == 1:
    inner()
if link.round == 2:
    os.kill(os.getpid(), signal.SIGKILL)
while not (folder / "go").exists():
    time.sleep(0.05)
link.give_up("the folder can't be written")
raise RuntimeError("last words")
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """One job that fails in three ways, one after the other."""
    folder = tmp_path_factory.mktemp("job")
    temporary = folder / "tmp"
    temporary.mkdir()
    job, metrics = Job(folder, SCRIPT, nodes="1"), free_endpoint()
    job.token = "its-own-token"
    try:
        job.start(
            0,
            restarts=5,
            environment={
                "VOLCANO_ELASTIC_TOKEN": job.token,
                "VOLCANO_ELASTIC_METRICS_ADDRESS": str(metrics),
                "TMPDIR": str(temporary),
            },
            options=("--log-dir", str(folder / "logs"), "--redirects", "3"),
        )
        told = job.until("both failures are known", lambda told: len(told.get("failures", [])) == 2)
        told = job.until(
            "steps of a third attempt",
            lambda told: told["round"] == 3 and told["rounds"][-1]["last_step"] == 2,
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
            numbers = answer.read().decode()
        (folder / "go").touch()
        code = job.wait(0)
        return {
            "failures": told["failures"],
            "numbers": numbers,
            "code": code,
            "job": job.name,
            "log": (folder / "agent-0.log").read_text(),
            "left": [path.name for path in temporary.iterdir()],
        }
    finally:
        job.close()


def test_an_error_comes_with_rank_code_message_stack_and_exact_time(ended: dict[str, list]) -> None:
    failed = ended["failures"][0]
    assert (failed["round"], failed["rank"], failed["worker"], failed["exitCode"]) == (1, 0, 0, 1)
    assert failed["message"] == "ValueError: no such luck"
    assert "in inner" in failed["stack"] and "train.py" in failed["stack"]
    assert abs(time.time() - failed["time"]) < 600 and failed["time"] % 1 != 0


def test_a_kill_without_a_word_is_told_too(ended: dict[str, list]) -> None:
    failed = ended["failures"][1]
    assert (failed["round"], failed["exitCode"], failed["signal"]) == (2, -9, "SIGKILL")
    assert failed["message"] == "killed by SIGKILL" and not failed["stack"]


def test_the_output_of_earlier_attempts_is_kept(ended: dict[str, list]) -> None:
    for failed in ended["failures"]:
        output = Path(failed["log"], "stdout.log").read_text()
        assert f"this is attempt {failed['round']}" in output


def test_an_error_that_would_only_repeat_ends_the_job_at_once(ended: dict[str, object]) -> None:
    assert ended["code"] == 1
    assert "the folder can't be written" in str(ended["log"])
    assert "running, round 4" not in str(ended["log"])
    assert "its-own-token" not in str(ended["log"])


def test_torchruns_folder_is_not_left_behind(ended: dict[str, list[str]]) -> None:
    assert not [name for name in ended["left"] if name.startswith("torchelastic_")]


def test_the_workers_metrics_are_served(ended: dict[str, str]) -> None:
    lines = dict(
        line.rsplit(" ", 1) for line in ended["numbers"].splitlines() if not line.startswith("#")
    )
    labels = f'{{job="{ended["job"]}",worker="0"}}'
    values = {
        name.removeprefix("volcano_elastic_trainer_").removesuffix(labels): float(value)
        for name, value in lines.items()
    }
    assert values["world_size"] == 1 and values["worker_round"] == 3
    assert values["restarts_total"] == 2 and values["recoveries_total"] == 2
    assert values["recovery_seconds"] > 0
    assert values["checkpoint_stall_seconds_total"] >= 0.25


# Piece by piece


def test_torchruns_own_folder_goes_unless_it_holds_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(log_folder, "_noted", set())
    for name, file in (("a", "error.json"), ("b", "stdout.log")):
        attempt = tmp_path / f"torchelastic_{name}" / "run" / "attempt_0" / "0"
        attempt.mkdir(parents=True)
        (attempt / file).touch()
        log_folder.note(str(attempt / "error.json"))
    for name, age in (("old", log_folder.OLD_SECONDS + 60), ("young", 0)):
        (tmp_path / f"torchelastic_{name}").mkdir()
        modified = time.time() - age
        os.utime(tmp_path / f"torchelastic_{name}", (modified, modified))
    log_folder.remove_unnamed()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["torchelastic_b", "torchelastic_young"], "it may be about to be written to"


def exit_(path: Path | None = None, code: int = -9) -> Exit:
    return Exit(
        round=4,
        rank=3,
        local_rank=1,
        pid=777,
        code=code,
        time=1000.5,
        error_file=str(path or ""),
    )


def test_torchs_own_error_files_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    extra = {"py_callstack": "the stack", "timestamp": "17"}
    path.write_text(json.dumps({"message": {"message": "KeyError: 'a'", "extraInfo": extra}}))
    os.utime(path, (100.25, 100.25))
    found = describe(exit_(path, code=1), oom_killed=False)
    assert (found.message, found.stack, found.time) == ("KeyError: 'a'", "the stack", 100.25)
    path.write_text(json.dumps({"message": "a plain one"}))
    assert describe(exit_(path), oom_killed=False).message == "a plain one"
    for broken in ("", "[]", "{}", '{"message": 7}', "no JSON"):
        path.write_text(broken)
        assert error_file.read(str(path)) is None


def test_out_of_memory_is_told_from_a_kill(tmp_path: Path) -> None:
    assert "out of memory" in describe(exit_(), oom_killed=True).message
    assert describe(exit_(), oom_killed=False).message == "killed by SIGKILL"
    assert "exited with code 3" in describe(exit_(code=3), oom_killed=True).message
    noted = describe(exit_(), oom_killed=True, note="it was stopped")
    assert noted.message == "it was stopped", "this agent killed it"


def test_an_error_of_the_codes_own_is_told_with_its_place_and_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv(error_file.VARIABLE, str(path))
    kinds: tuple[type[Exception], ...] = (ValueError, OSError)
    for kind in kinds:
        try:
            raise kind("no such luck")
        except kind as error:
            error_file.write(kind, error, error.__traceback__)
            os.utime(path, (100.25, 100.25))
            error_file.own(kind, error, error.__traceback__, 7)
        found = describe(exit_(path, code=1), oom_killed=False)
        assert found.message == f"{kind.__name__}: no such luck" and found.time == 100.25
        if kind is ValueError:
            assert found.error.startswith(f"ValueError at {__file__}:") and found.step == 7
        else:
            assert (found.error, found.step) == ("", -1), "it may pass"
        path.unlink()


@pytest.mark.parametrize(
    ("error", "of_the_code"),
    [
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), True),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc] closed"), False),
        (KeyError(), True),
        (OSError(), False),
        (ConnectionResetError(), False),
        (MemoryError(), False),
        (EOFError(), False),
        (RuntimeError("Pin memory thread exited unexpectedly"), False),
        (RuntimeError("received 0 items of ancdata"), False),
        (json.JSONDecodeError("", "", 0), False),
    ],
)
def test_errors_of_files_network_and_memory_may_pass(
    error: BaseException, of_the_code: bool
) -> None:
    assert error_file.of_the_code(type(error), str(error)) is of_the_code


def test_only_so_many_attempts_are_kept(tmp_path: Path) -> None:
    for number in range(30):
        attempt = tmp_path / "attempt_0" / "0"
        attempt.mkdir(parents=True, exist_ok=True)
        (attempt / "stderr.log").write_text(str(number))
        found = keep_logs(
            Exit(
                round=number,
                rank=0,
                local_rank=0,
                pid=1,
                code=1,
                time=0.0,
                error_file=str(attempt / "error.json"),
            )
        )
        (attempt / "stderr.log").unlink()
        assert Path(found, "stderr.log").read_text() == str(number)
    assert len(list((tmp_path / "failed").iterdir())) == 20
    assert keep_logs(exit_()) == ""


def test_the_first_failure_is_the_containers_termination_message(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    write_termination_message([Failed(message="m")], None, path)
    assert not path.exists()
    path.touch()
    write_termination_message([], None, path)
    assert not path.stat().st_size
    write_termination_message([], "another node's error came twice", path)
    assert path.read_text() == "another node's error came twice\n"
    write_termination_message(
        [Failed(round=2, rank=1, message="E: x", stack="s" * 9999), Failed()], None, path
    )
    assert path.read_text().startswith("round 2, rank 1: E: x\nsss")
    assert path.stat().st_size == 4096


def test_step_times_and_recoveries_are_counted_across_rounds() -> None:
    metrics = WorkerMetrics()
    metrics.started()
    metrics.begun(1, 2)
    for reading in (Reading(), Reading(1, 10.0, 32), Reading(5, 12.0, 160, 0.5)):
        metrics.read(reading)
    metrics.begun(2, 4)
    for reading in (Reading(-1, 12.0, 0, 0.5), Reading(6, 12.25, 200, 0.5)):
        metrics.read(reading)
    found = {metric.name: metric.value for metric in metrics.metrics()}
    assert found["step_seconds"] == 0.5 and found["steps_total"] == 4
    assert found["samples_per_second"] == 64
    assert found["recovery_seconds"] == 0.25 and found["recoveries_total"] == 1
    assert found["checkpoint_stall_seconds_total"] == 0.5 and found["world_size"] == 4
    assert 'x="a\\"b"' in exposition(metrics.metrics(), {"x": 'a"b'})


class Ended:
    """A process that has ended."""

    pid, ended = 7, 99.5

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (1, False, True),
        (-9, False, True),
        (-15, False, False),
        (-15, True, True),
        (0, False, False),
    ],
)
def test_a_worker_that_torchrun_ends_has_not_failed_unless_it_says_so(
    tmp_path: Path, code: int, words: bool, told: bool
) -> None:
    from elastic_trainer.launch.launcher import _Watched  # it imports torch

    found: list[Exit] = []
    path = tmp_path / "error.json"
    if words:
        path.write_text('{"message": "it failed before"}')
    names = {"RANK": "3", "LOCAL_RANK": "1", "VOLCANO_ELASTIC_ROUND": "4"}
    worker = _Watched(
        Ended(code),
        {**names, error_file.VARIABLE: str(path)},
        found.append,
        lambda _: math.inf,
        lambda *_: True,
    )
    worker.sent.add(15)
    assert worker.poll() == worker.poll() == code
    failed = Exit(round=4, rank=3, local_rank=1, pid=7, code=code, time=99.5, error_file=str(path))
    assert found == ([failed] if told else [])


def test_an_end_with_code_0_is_told_once_it_may_be_and_at_once_where_torchrun_ends_it() -> None:
    from elastic_trainer.launch.launcher import _Watched  # it imports torch

    allowed: list[int] = []
    worker = _Watched(
        Ended(0), {}, pytest.fail, lambda _: math.inf, lambda pid, _: bool(allowed and pid)
    )
    assert worker.poll() is None and worker.gone
    allowed.append(1)
    assert worker.poll() == 0
    allowed.clear()
    worker.sent.add(15)
    assert worker.poll() == 0


def test_a_worker_that_is_stopped_is_killed_whatever_its_script(tmp_path: Path) -> None:
    from elastic_trainer.launch.launcher import _Watched  # it imports torch

    found: list[Exit] = []
    process = subprocess.Popen(["sleep", "600"])
    try:
        worker = _Watched(process, {}, found.append, lambda _: math.inf, lambda *_: True)
        assert worker.poll() is None
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait(120)
    assert [(one.code, one.note) for one in found] == [
        (-9, "it was stopped for 0.6 s, so it was killed")
    ]


def test_a_worker_that_keeps_sigterm_to_itself_is_not_waited_for_longer_than_it_may() -> None:
    from elastic_trainer.launch.launcher import _Watched  # it imports torch

    patience = iter([math.inf, math.inf, 0.0, 0.0])
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        worker = _Watched(process, {}, pytest.fail, lambda _: next(patience), lambda *_: True)
        process.terminate()
        worker.sent.add(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(600)  # seconds that torchrun would give it
        assert process.poll() is None, "torchrun kills it, who has been told"
        process.kill()
        worker.sent.add(signal.SIGKILL)
        assert worker.wait(120) == -signal.SIGKILL, "and it has the time to end"
    finally:
        process.kill()
        process.communicate(timeout=120)
