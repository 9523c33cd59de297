"""The end of an ElasticLoop under real agents: what was trained last is in the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

STEPS = 8

SCRIPT = f"""
import os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn({STEPS * 8}, 4)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=8, batch_size=4, epochs=1
)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=1000)
first = not (folder / "lost").exists()
for x, y in loop:
    with loop.step():
        (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
    if first and loop.stepped and loop.steps == {STEPS}:
        (folder / f"applied-{{loop.rank}}").touch()
        while len(list(folder.glob("applied-*"))) < loop.world:
            time.sleep(0.01)
        if loop.rank == int((folder / "loses").read_text()):
            (folder / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while not loop.link.over:
            time.sleep(0.01)
(folder / f"ended-{{loop.rank}}").touch()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, "2:2")
    yield job
    job.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_last_step_that_only_a_process_had_when_a_peer_was_lost_is_committed(
    job: Job, rank: int
) -> None:
    (job.folder / "loses").write_text(str(rank))
    job.start(0, 1)
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    assert (job.folder / "lost").exists()
    assert {path.name for path in job.folder.glob("ended-*")} == {"ended-0", "ended-1"}
    newest = Storage(job.folder / "commits").newest()
    assert newest is not None, job.logs()
    assert newest.step == STEPS
