"""Nodes that leave with parts of a sharded state between two rounds give them away, or commit."""

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
import os, sys, time
from pathlib import Path
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.checkpoint import checkpointer
from elastic_trainer.checkpoint.sharded import Shards
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import loop as loop_module
from elastic_trainer.store.errors import StorageError

folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = torch.linspace(-1, 1, 480 * 8).reshape(480, 8)

class Link(WorkerLink):
    def next_place(self, meanwhile=None):
        if self.round and os.environ["RANK"] == "0" and (folder / "pause").exists():
            (folder / "between").touch()
            while not (folder / "told").exists():
                time.sleep(0.01)
        return super().next_place(meanwhile)

loop_module.WorkerLink = Link

class Memory(Shards):
    def _write(self, state, step, run, round_, peers):
        if peers is not None:
            raise StorageError("not beside the training")
        super()._write(state, step, run, round_, peers)

checkpointer.Shards = Memory

def make():
    net = torch.nn.Sequential(torch.nn.Linear(8, 17), torch.nn.Tanh(), torch.nn.Linear(17, 1))
    for part in (net[0], net):
        fully_shard(part)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)

data = ElasticDataset(
    TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)), global_batch=24, epochs=1000
)
every = int(os.environ.get("EVERY", 10**6))
loop = ElasticLoop(folder / "commits", make=make, data=data, every=every)
for x, y in loop:
    with loop.step():
        (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)
    time.sleep(0.01)
    if loop.stepped and enough:
        loop.stop()
"""
"""It saves at fences, or every so many steps, and brings nothing to storage that memory holds on
two nodes."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="1:6")
    yield job
    job.close()


def test_two_that_begin_to_leave_between_two_rounds_take_no_part_of_the_state_along(
    job: Job,
) -> None:
    job.start(0, 1, 2, 3)
    told = job.stepping(4)
    job.start(4)
    told = job.stepping(5, after_round=told["round"])
    saved = told["rounds"][-1]["first_step"] - 1
    of_five = told["round"]
    assert Storage(job.folder / "commits").newest() is None
    (job.folder / "pause").touch()
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    job.until("a round is over", lambda told: (job.folder / "between").exists())
    for index in (2, 3):
        job.agents[index].send_signal(signal.SIGTERM)
    job.until(
        "two leave",
        lambda told: all(
            index in told["leaving"] or job.agents[index].poll() is not None for index in (2, 3)
        ),
    )
    (job.folder / "pause").unlink()
    (job.folder / "told").touch()
    assert [job.wait(index) for index in (2, 3)] == [0, 0], job.logs()
    told = job.stepping(3, after_round=told["round"])
    since = [one for one in told["rounds"] if one["round"] >= of_five and one["first_step"]]
    assert min(one["first_step"] for one in since) == saved + 1
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1, 4)] == [0, 0, 0], job.logs()


def test_a_lone_survivor_commits_what_memory_holds_whole_before_it_goes(job: Job) -> None:
    job.nodes = "2:6"
    job.start(0, 1, 2)
    told = job.stepping(3)
    job.agents[2].send_signal(signal.SIGTERM)
    assert job.wait(2) == 0, job.logs()
    told = job.stepping(2, after_round=told["round"])
    saved = told["rounds"][-1]["first_step"] - 1
    assert Storage(job.folder / "commits").newest() is None
    os.killpg(job.agents[1].pid, signal.SIGKILL)
    job.until("one waits for others", lambda told: told["phase"] == "forming")
    job.agents[0].send_signal(signal.SIGTERM)
    assert job.wait(0) == 0, job.logs()
    newest = Storage(job.folder / "commits").newest()
    assert newest is not None and newest.step == saved, job.logs()


@pytest.mark.parametrize("lost", [2, 3])
def test_who_has_a_place_after_a_loss_has_all_parts_of_the_state(job: Job, lost: int) -> None:
    """Two nodes make a unit, so one of the three that are left has no place."""
    job.nodes = "2:6"
    job.start(0, 1, 2, 3, environment={"VOLCANO_ELASTIC_NODE_UNIT": "2", "EVERY": "1"})
    told = job.stepping(4)
    job.lose(lost)
    told = job.stepping(2, after_round=told["round"])
    assert told["rounds"][-1]["first_step"] > 1, job.logs()
    assert Storage(job.folder / "commits").newest() is None
