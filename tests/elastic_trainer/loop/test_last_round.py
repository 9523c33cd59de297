"""A worker that leaves with the only live state commits it first, also where too few are there to
train."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
data = ElasticDataset(TensorDataset(torch.randn(512, 8)), global_batch=8, epochs=1000)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=10**6)
log = open(folder / f"steps-{os.getpid()}", "a", buffering=1)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).square().mean()).backward()
        if loop.rank and (folder / "hold").exists() and not (folder / "died").exists():
            while not (folder / "die").exists():
                time.sleep(0.01)
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        enough = torch.tensor(float((folder / "enough").exists()))
        if loop.world > 1:
            torch.distributed.all_reduce(enough)
    if loop.stepped:
        log.write(f"{loop.steps}\\n")
    time.sleep(0.01)
    if loop.stepped and enough:
        loop.stop()
"""
"""It commits nothing by itself until it ends."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="2:4")
    yield job
    job.close()


def made(job: Job) -> list[int]:
    """Return all steps that were made, as they were."""
    return sorted(int(n) for path in job.folder.glob("steps-*") for n in path.read_text().split())


def committed(job: Job) -> int:
    newest = Storage(job.folder / "commits").newest()
    return newest.step if newest is not None else -1


@pytest.mark.parametrize("lost", [1, 0], ids=["worker 1", "worker 0"])
def test_a_lone_survivor_commits_before_it_goes_though_it_waited_for_others(
    job: Job, lost: int
) -> None:
    """Also where the coordinator was lost with the other one."""
    job.start(0, 1)
    job.stepping(2)
    os.killpg(job.agents[lost].pid, signal.SIGKILL)
    left = 1 - lost
    job.until("one waits for others", lambda told: told["phase"] == "forming")
    assert committed(job) == -1
    job.agents[left].send_signal(signal.SIGTERM)
    assert job.wait(left) == 0, job.logs()
    last = made(job)[-1]
    assert committed(job) == last, job.logs()

    job.start(2, 3)  # and with worker 0's index
    job.start(0)
    told = job.stepping(3)
    assert told["rounds"][-1]["first_step"] > last
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 2, 3)] == [0, 0, 0], job.logs()


def test_a_leaver_gives_the_only_live_state_to_one_whose_workers_failed(job: Job) -> None:
    job.start(0, 1)
    job.stepping(2)
    (job.folder / "hold").touch()
    job.agents[0].send_signal(signal.SIGTERM)
    job.until("it leaves", lambda told: 0 in told["leaving"])
    (job.folder / "die").touch()
    assert job.wait(0) == 0, job.logs()
    last = made(job)[-1]
    assert committed(job) == last, job.logs()
    job.start(2)
    told = job.stepping(2)
    assert told["rounds"][-1]["first_step"] > last
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (1, 2)] == [0, 0], job.logs()
    steps = made(job)
    assert max(steps.count(one) for one in set(steps)) == 2, "no step was made again"
