"""ElasticLoop under real agents: slow steps and slow transfers are waited for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.checkpoint import transfer

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(512, int(os.environ.get("WIDTH", "8")))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = ElasticDataset(TensorDataset(torch.ones(4000, 512)), batch_size=1, epochs=1)
step_seconds = float(os.environ.get("STEP_SECONDS", "0.02"))
send = dist.isend

def slowly(*arguments, **options):
    time.sleep(float(os.environ.get("SEND_SECONDS", "0")))
    return send(*arguments, **options)

transfer.LARGEST = 1 << 20
dist.isend = slowly
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=1000)
for (x,) in loop:
    with loop.step():
        time.sleep(step_seconds)
        (loop.weight * loop.model(x).mean()).backward()
    if (folder / "enough").exists():
        os._exit(0)
"""


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """At full length: five minutes of hand-over, steps of 90 s, a grace of ten minutes."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def job(tmp_path: Path, long: bool) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    if long:
        job.patience = 1200.0
    yield job
    job.close()


def test_a_state_that_takes_longer_than_its_deadline_to_hand_over_joins(
    job: Job, long: bool
) -> None:
    # 8 MiB in pieces of 1 MiB and what tells of them, 0.7 s each: over 7 s, and each piece well
    # within the 5 s, on a slow machine too.
    slow = {"WIDTH": "4096", "SEND_SECONDS": "0.7", "VOLCANO_ELASTIC_PLACE_SECONDS": "5"}
    if long:
        slow = {"WIDTH": "4096", "SEND_SECONDS": "30"}
    job.start(0, environment=slow)
    told = job.stepping(1)
    job.start(1, environment=slow)
    joined = job.stepping(2, after_round=told["round"])
    assert joined["round"] == told["round"] + 1, "at the first try"
    assert joined["pids"]["0"] == told["pids"]["0"]


def test_steps_longer_than_the_patience_survive_a_lost_peer(job: Job, long: bool) -> None:
    slow = {"STEP_SECONDS": "2.0", "VOLCANO_ELASTIC_PATIENCE_SECONDS": "0.3"}
    if long:
        slow = {"STEP_SECONDS": "90", "VOLCANO_ELASTIC_GRACE_SECONDS": "600"}
    job.start(0, 1, 2, environment=slow)
    told = job.stepping(3)
    os.kill(told["pids"]["1"][0], signal.SIGKILL)
    after = job.stepping(3, after_round=told["round"])
    assert after["pids"]["0"] == told["pids"]["0"] and after["pids"]["2"] == told["pids"]["2"]
    # And a leaver of such steps stops at the end of the one in progress: none is lost.
    job.agents[2].send_signal(signal.SIGTERM)
    left = job.stepping(2, after_round=after["round"])
    assert job.wait(2) == 0, job.logs()
    assert left["rounds"][-1]["reason"] == "worker 2 left"
    assert left["rounds"][-1]["first_step"] == left["rounds"][-2]["last_step"] + 1


def test_leaving_honours_a_grace_longer_than_kubernetes_own(tmp_path: Path, long: bool) -> None:
    # A commit of 35 s: more than any fixed limit, less than the pod's grace.
    commit, grace = (540.0, "600") if long else (35.0, "90")
    script = SCRIPT.replace(
        "loop = ElasticLoop",
        "from elastic_trainer import Checkpointer\n"
        "save = Checkpointer.commit\n"
        f"def commit(self, *, stored):\n    time.sleep({commit})\n    save(self, stored=stored)\n"
        "Checkpointer.commit = commit\n"
        "loop = ElasticLoop",
    )
    job = Job(tmp_path, script)
    job.patience = max(job.patience, 2 * commit)
    try:
        job.start(0, environment={"VOLCANO_ELASTIC_GRACE_SECONDS": grace})
        job.stepping(1)
        job.agents[0].send_signal(signal.SIGTERM)
        assert job.wait(0) == 0, job.logs()
        assert list((tmp_path / "commits").glob("step-*/COMMITTED")), "it left committed"
    finally:
        job.close()
