"""A rank that hangs, in a real round: found, told with its stack, and trained on without a loss."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.data.audit import verify

from tests.elastic_trainer.torchrun_job import Job, children

pytestmark = pytest.mark.process

SCRIPT = """
import ctypes, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = ElasticDataset(
    TensorDataset(torch.ones(600, 8)), batch_size=2, epochs=1, audit=folder / "audit"
)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data)

def a_lock_that_is_never_released():
    (folder / "hung").touch()
    if (folder / "kernel").exists():
        ctypes.PyDLL(None).sleep(3600)  # keeps the interpreter's lock, so no thread runs
    time.sleep(3600)

for (x,) in loop:
    with loop.step():
        # Slowly from a step on, so that whoever looks sees the job before it ends.
        time.sleep(0.02 if loop.steps < 60 or (folder / "go").exists() else 1.0)
        again = (folder / "always").exists() or not (folder / "hung").exists()
        if loop.rank == 1 and loop.steps == 40 and again:
            a_lock_that_is_never_released()
        (loop.weight * loop.model(x).mean()).backward()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="2:2")
    yield job
    job.close()


def test_a_rank_that_hangs_is_named_with_its_stack_and_no_sample_is_lost(job: Job) -> None:
    short = {"VOLCANO_ELASTIC_HANG_SECONDS": "4", "VOLCANO_ELASTIC_PATIENCE_SECONDS": "1"}
    job.start(0, 1, environment={**short, "TORCH_FR_BUFFER_SIZE": "100"})
    found = hung_at(40, job.until("it is found", lambda told: bool(hung_at(40, told))))
    assert found["behind"] == [1] and "rank 1 is behind" in found["words"], found
    ranks, stack = found["stacks"][0]["ranks"], found["stacks"][0]["stack"]
    assert ranks == [1] and "a_lock_that_is_never_released" in stack

    # Its process does not come out of the round: its agent says where it sat, and ends it.
    failed = failed_of(1, job.until("it is ended", lambda told: bool(failed_of(1, told))))
    assert "did not come out of round" in failed["message"]
    assert "a_lock_that_is_never_released" in failed["stack"]
    assert "a_lock_that_is_never_released" in (job.folder / "agent-1.log").read_text()

    # The ledger of GPU time outlives the coordinator.
    told = job.until("it goes on", lambda told: told["step"] > 45 and told["phase"] == "running")
    before = told["goodput"]
    assert sum(before["milliseconds"].values()) == before["held"]
    assert before["milliseconds"]["hang"] >= 2 * 4000 and before["id"]
    os.kill(children(job.agents[0].pid)["coordinator"], signal.SIGKILL)

    def another_coordinators(told_since: dict[str, Any]) -> bool:
        anew = told_since.get("pid", told["pid"]) != told["pid"]
        return anew and told_since["step"] > told["step"] + 5

    after = job.until("another goes on", another_coordinators)["goodput"]
    assert after["id"] == before["id"] and sum(after["milliseconds"].values()) == after["held"]
    spent, spent_before = after["milliseconds"], before["milliseconds"]
    assert spent["hang"] >= spent_before["hang"] and after["held"] > before["held"]
    # All that two agents heard of in the last of the heartbeats that carry it.
    assert spent["productive_training"] > spent_before["productive_training"] - 2 * 1000
    (job.folder / "go").touch()
    assert job.wait(0) == 0 and job.wait(1) == 0, job.logs()
    assert verify(job.folder / "audit", 600, 1).ok


def test_a_rank_whose_kernel_keeps_the_interpreters_lock_is_killed_alone(job: Job) -> None:
    """Its link can't hear that the round is over, nor abort anything."""
    (job.folder / "kernel").touch()
    (job.folder / "go").touch()
    short = {"VOLCANO_ELASTIC_HANG_SECONDS": "4", "VOLCANO_ELASTIC_PATIENCE_SECONDS": "1"}
    job.start(0, 1, environment=short)
    first = job.until("it trains", lambda told: told["step"] > 0)["pids"]
    told = job.until("it is ended", lambda told: bool(failed_of(1, told)))
    assert "did not come out of round" in failed_of(1, told)["message"]
    assert "a_lock_that_is_never_released" in failed_of(1, told)["stack"]
    told = job.until("it goes on", lambda told: told["step"] > 45 and told["phase"] == "running")
    assert told["pids"]["0"] == first["0"] and told["pids"]["1"] != first["1"]
    assert job.wait(0) == 0 and job.wait(1) == 0, job.logs()
    assert verify(job.folder / "audit", 600, 1).ok


def test_a_rank_that_hangs_at_the_same_step_again_ends_the_job_in_words(job: Job) -> None:
    (job.folder / "always").touch()
    short = {"VOLCANO_ELASTIC_HANG_SECONDS": "1", "VOLCANO_ELASTIC_PATIENCE_SECONDS": "1"}
    job.start(0, 1, restarts=50, environment=short)
    assert job.wait(0) == 1 and job.wait(1) == 1
    log = (job.folder / "agent-1.log").read_text()
    assert re.search(
        r"(?m)^volcano-elastic: rounds \d+ and \d+ hung after step 40, the later one no step "
        r"further: rank 1 is behind: .* on .*; no step for \d+ s \(if that step is only slow",
        log,
    ), log


def hung_at(step: int, told: dict[str, Any]) -> dict[str, Any]:
    """Return the hang after this step that its round was ended for; empty if there is none."""
    hangs = told.get("hangs", [])
    return next((one for one in hangs if one["broken"] and one["step"] == step), {})


def failed_of(rank: int, told: dict[str, Any]) -> dict[str, Any]:
    """Return the first failure of a rank; empty if there is none."""
    return next((one for one in told.get("failures", []) if one["rank"] == rank), {})
