"""Groups that a script makes of its round: the end of the round breaks them, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.loop.state_feed import FOLLOW_VARIABLE

from tests.elastic_trainer.torchrun_job import Job, children

pytestmark = pytest.mark.process

SCRIPT = """
import logging, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

logging.basicConfig(level=logging.INFO)
folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
data = ElasticDataset(TensorDataset(torch.randn(4096, 8)), batch_size=4, epochs=10**6)
group = None

def begin(loop):
    global group
    group = dist.new_group()

loop = ElasticLoop(
    folder / "commits", model=net, optimizer=torch.optim.SGD(net.parameters(), lr=1e-4),
    data=data, begin=begin, every=10**6,  # who is replaced needlessly takes the job back to step 0
)
for (x,) in loop:
    with loop.step():
        for _ in range(20):
            dist.all_reduce(torch.ones(10), group=group)
        (loop.weight * loop.model(x).square().mean()).backward()
    time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def test_ranks_that_wait_in_a_group_of_their_own_for_a_silent_node_live_on(job: Job) -> None:
    job.start(0, 1, 2, environment={"VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT": "2"}, restarts=9)
    told = job.stepping(3)
    silent = [job.agents[2].pid, *children(job.agents[2].pid).values()]
    for pid in silent:
        os.kill(pid, signal.SIGSTOP)
    try:
        after = job.stepping(2, after_round=told["round"])
    finally:
        for pid in silent:
            os.kill(pid, signal.SIGCONT)
    assert {pod: after["pids"][pod] for pod in "01"} == {pod: told["pids"][pod] for pod in "01"}
    assert after["step"] >= told["step"]


def test_a_newcomer_follows_ranks_with_a_group_of_their_own(job: Job) -> None:
    followed = {FOLLOW_VARIABLE: "0"}
    job.start(0, 1, environment=followed)
    told = job.stepping(2)
    job.start(2, environment=followed)
    after = job.stepping(3, after_round=told["round"])
    assert {pod: after["pids"][pod] for pod in "01"} == {pod: told["pids"][pod] for pod in "01"}
    assert "this newcomer has followed the others" in job.logs()
