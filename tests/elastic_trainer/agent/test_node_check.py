"""A job that asks for a node check: before its first round, with real torchruns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.coordinator.__main__ import CHECK_VARIABLE
from elastic_trainer.coordinator.recheck import RECHECK_VARIABLE
from elastic_trainer.identity import COORDINATOR_VARIABLE, NODE_VARIABLE
from elastic_trainer.node_check.measurement import FAULT_VARIABLE

from tests.elastic_trainer.torchrun_job import PATIENCE, STEPPING, Job, children, gone

pytestmark = pytest.mark.process

FAILING = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.elastic_trainer.small_training import train, training

folder = Path(sys.argv[1])

def each_step():
    time.sleep(0.02)
    failed = folder / "failed"
    node = os.environ["VOLCANO_ELASTIC_NODE_NAME"]
    if node == "gpu-2" and loop.steps > 5 and not failed.exists():
        failed.touch()
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

loop = training(folder / "commits", epochs=1000)
train(loop, each_step)
"""
CHECKED = ("--rdzv-conf", "node_check=1")
PATIENT = {CHECK_VARIABLE: str(PATIENCE)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def jobs(folder: Path) -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.close()


def verdicts(told: dict[str, Any]) -> dict[int, str]:
    found = told.get("check") or {"nodes": []}
    return {node["worker"]: node["verdict"] for node in found["nodes"]}


def test_sound_nodes_are_proven_and_then_train(folder: Path, jobs: list[Job]) -> None:
    job = Job(folder, STEPPING, nodes="2:2")
    jobs.append(job)
    job.start(0, 1, options=CHECKED, environment=PATIENT)
    told = job.stepping(2)
    assert verdicts(told) == {0: "proven", 1: "proven"}
    assert told["rounds"][0]["round"] == 1, "no round of training was spent on it"


def test_a_node_that_is_told_to_leave_during_a_check_leaves_with_its_processes(
    folder: Path, jobs: list[Job]
) -> None:
    job = Job(folder, STEPPING, nodes="2:2")
    jobs.append(job)
    job.start(0, 1, options=CHECKED, environment={**PATIENT, FAULT_VARIABLE: "hang"})

    def measuring() -> int | None:
        """The process of worker 1's trial."""
        found = children(job.agents[1].pid)
        return next((pid for name, pid in found.items() if name.startswith("ve-worker")), None)

    job.until("worker 1 is in a trial", lambda told: measuring() is not None)
    pid = measuring()
    assert pid is not None
    job.agents[1].send_signal(signal.SIGTERM)
    assert job.wait(1) == 0
    job.until("its process has ended", lambda told: gone(pid))


def test_a_broken_node_is_found_and_the_others_train_without_it(
    folder: Path, jobs: list[Job]
) -> None:
    job = Job(folder, STEPPING, nodes="2:4")
    jobs.append(job)
    # It begins with nobody, so that all are checked together however long they take to start.
    coordinator = subprocess.Popen(
        [
            *(sys.executable, "-m", "elastic_trainer.coordinator", "--port", str(job.port)),
            *("--job", job.name, "--min", "5", "--max", "5", "--heartbeat-timeout", "5"),
            *("--parent", str(os.getpid())),
        ],
        env={**os.environ, **PATIENT},
        stderr=subprocess.DEVNULL,
    )
    try:
        for index in range(4):
            environment = {COORDINATOR_VARIABLE: "dedicated", NODE_VARIABLE: f"gpu-{index}"}
            environment[FAULT_VARIABLE] = "wrong" if index == 2 else ""
            job.start(index, options=CHECKED, environment=environment)
        job.until("all have come", lambda told: len(verdicts(told)) == 4)
        change = urllib.request.Request(
            f"http://127.0.0.1:{job.port + 1}/range",
            data=json.dumps({"min": 2, "max": 4}).encode(),
            method="PUT",
        )
        urllib.request.urlopen(change, timeout=60).close()
        told = job.stepping(3)
    finally:
        coordinator.kill()
        coordinator.wait(120)
    assert verdicts(told) == {0: "proven", 1: "proven", 2: "faulty", 3: "proven"}
    assert sorted(told["ranks"]) == ["0", "1", "3"]
    [excluded] = told["excluded"]
    assert (excluded["node"], excluded["workers"]) == ("gpu-2", [2])
    assert "multiplied matrices wrongly" in excluded["reason"]
    assert "faulty" in (folder / "agent-2.log").read_text(), "its own log says so"


def test_a_node_whose_devices_failed_is_checked_with_the_others_before_it_trains_again(
    folder: Path, jobs: list[Job]
) -> None:
    job = Job(folder, FAILING, nodes="2:3")
    jobs.append(job)
    for index in range(3):
        environment = {**PATIENT, NODE_VARIABLE: f"gpu-{index}", FAULT_VARIABLE: "wrong:gpu-2"}
        job.start(index, environment={**environment, RECHECK_VARIABLE: str(PATIENCE)})
    told = job.until("it is left out", lambda told: bool(told.get("excluded")))
    told = job.stepping(2, after_round=told["round"] - 1)
    trained = next(one for one in told["rounds"] if one["world"] == 3)
    assert trained["end"] == "workers of worker 2 failed"
    assert verdicts(told) == {0: "proven", 1: "proven", 2: "faulty"}
    [excluded] = told["excluded"]
    assert excluded["node"] == "gpu-2"
    assert "multiplied matrices wrongly" in excluded["reason"]
    assert len(told["failures"]) == 1, "it had no second try"
