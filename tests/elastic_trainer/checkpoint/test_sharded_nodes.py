"""A sharded model's nodes are lost with their memory, join and leave, under real agents."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys, time
from pathlib import Path
from threading import current_thread, main_thread
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint import checkpointer as checkpointer_module
from elastic_trainer.checkpoint import sharded
from elastic_trainer.link.message import Fenced
from elastic_trainer.link.worker_link import WorkerLink

folder = Path(sys.argv[1])
sharded.Shards._store = lambda *_: False  # beside training: storage is too slow
if "UNSTORED" in os.environ:
    sharded.Shards.write = None  # whoever waited for storage would fail


class Link(WorkerLink):
    def _send(self, message):
        late = os.environ.get("LATE") == os.environ["RANK"] and self.told and self.told.leaving
        if late and isinstance(message, Fenced) and current_thread() is main_thread():
            (folder / "stands").touch()
            while not (folder / "told").exists():
                time.sleep(0.01)
        super()._send(message)


checkpointer_module.WorkerLink = Link
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
values = torch.linspace(-1, 1, 96 * 6).reshape(96, 6)
model = torch.nn.Sequential(torch.nn.Linear(6, 13), torch.nn.Tanh(), torch.nn.Linear(13, 1))
fully_shard(model[0])
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = ElasticDataset(
    TensorDataset(values, values.sum(1, keepdim=True)), global_batch=24, epochs=10**6
)
checkpointer = Checkpointer(
    folder / "commits", model=model, optimizer=optimizer, data=data,
    every=1 if "UNSTORED" in os.environ else 10**9,
)
log = open(folder / f"steps-{checkpointer.link.round}-{dist.get_rank()}", "a", buffering=1)
log.write(f"{data.steps}\\n")
for inputs, wanted in data:
    with data.micro_batch(model):
        (data.weight * torch.nn.functional.mse_loss(model(inputs), wanted)).backward()
    if data.last:
        optimizer.step()
        optimizer.zero_grad()
        log.write(f"{data.steps + 1}\\n")
        checkpointer.step()
        time.sleep(0.02)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def test_nodes_that_are_lost_join_and_leave_cost_no_step_but_of_the_lost_one(job: Job) -> None:
    """Storage, which takes nothing here, is neither asked nor waited for."""
    environment = {"UNSTORED": "1"}
    job.start(0, 1, 2, environment=environment)
    three = job.stepping(3)
    job.lose(2)
    two = job.stepping(2, after_round=three["round"])
    job.start(2, environment=environment)
    joined = job.stepping(3, after_round=two["round"])
    job.agents[1].send_signal(signal.SIGTERM)
    assert job.wait(1) == 0, job.logs()
    left = job.stepping(2, after_round=joined["round"])

    rounds = [steps_of(job, told["round"]) for told in (three, two, joined, left)]
    begins = [steps[0] for steps in rounds]
    ends = [steps[-1] for steps in rounds]
    # Two of them may have begun before the third was there.
    assert begins[0] == 0 or three["round"] > 1
    assert 0 < begins[1] <= ends[0]
    assert begins[2:] == ends[1:3]


@pytest.mark.parametrize("lost", [2, 3])
def test_of_too_many_for_whole_units_those_with_all_parts_of_the_state_go_on(
    job: Job, lost: int
) -> None:
    job.nodes = "2:4"
    environment = {"UNSTORED": "1", "VOLCANO_ELASTIC_NODE_UNIT": "2"}
    job.start(0, 1, 2, 3, environment=environment)
    four = job.stepping(4)
    job.lose(lost)
    two = job.stepping(2, after_round=four["round"])
    begin = steps_of(job, two["round"])[0]
    assert 0 < begin <= steps_of(job, four["round"])[-1], job.logs()


def test_the_last_step_is_in_storage_where_all_begin_to_leave_while_others_stand_at_the_fence(
    job: Job,
) -> None:
    """Until then memory has it on two nodes that stay."""
    job.nodes = "2:4"
    job.start(0, 1, 2, environment={"LATE": "0"})
    told = job.stepping(3)
    job.agents[0].send_signal(signal.SIGTERM)
    job.until("it stands at the fence", lambda told: (job.folder / "stands").exists())
    job.agents[1].send_signal(signal.SIGTERM)
    job.agents[2].send_signal(signal.SIGTERM)
    job.until("all leave", lambda told: told["leaving"] == [0, 1, 2])
    (job.folder / "told").touch()
    assert [job.wait(index) for index in range(3)] == [0, 0, 0], job.logs()
    last = steps_of(job, told["round"])[-1]
    for path in job.folder.glob("steps-*"):
        path.unlink()
    job.start(0, 1, 2)
    job.stepping(3)
    begins = [int(path.read_text().split()[0]) for path in job.folder.glob("steps-*")]
    assert min(begins) == last > 0


def steps_of(job: Job, number: int) -> list[int]:
    """Return the steps of a round: first that which it began with, the same on all ranks."""
    found = [
        [int(line) for line in path.read_text().split()]
        for path in job.folder.glob(f"steps-{number}-*")
    ]
    assert len({steps[0] for steps in found}) == 1, job.logs()
    return max(found, key=len)
