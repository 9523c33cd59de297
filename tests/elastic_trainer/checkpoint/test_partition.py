"""Two sides of a partition, in one folder: each with a coordinator, or one cut off from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from elastic_trainer.store.commit import Commit
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.checkpoint.test_ownership import ALONE
from tests.elastic_trainer.fault_proxy import Proxy
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process


def side(folder: Path, name: str, epochs: int) -> Job:
    (folder / name).mkdir()
    arguments = f"import sys\nsys.argv = [sys.argv[0], {str(folder)!r}, '{epochs}', '{{}}']\n"
    return Job(folder / name, arguments + ALONE, nodes="1:1")


def there(storage: Storage) -> list[Commit]:
    """Return the commits, of which there are some: one look may find all those removed that it
    listed, while newer ones are written."""
    for _ in range(1200):
        if found := storage.commits():
            return found
        time.sleep(0.05)
    raise AssertionError("no commit was there for a minute")


def test_of_two_sides_with_coordinators_the_later_ones_commits_survive(tmp_path: Path) -> None:
    cut_off, later = side(tmp_path, "a", 10**6), side(tmp_path, "b", 10**6)
    storage = Storage(tmp_path / "commits")
    try:
        cut_off.start(0)
        cut_off.until("it has committed", lambda _: bool(storage.commits()))
        before = storage.commits()[0]
        later.start(0)
        assert cut_off.wait(0) != 0
        assert "taken over by run" in cut_off.logs()
        ended = there(storage)[0].step
        later.until("it goes on", lambda _: there(storage)[-1].step > ended)
        runs = {commit.run for commit in there(storage)}
        assert len(runs) == 1 and min(runs) > before.run
    finally:
        cut_off.close()
        later.close()


LOOP = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
data = ElasticDataset(TensorDataset(torch.ones(64, 4)), batch_size=8, epochs=10**6)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=2)
for (x,) in loop:
    with loop.step():
        time.sleep(0.02)
        (loop.weight * loop.model(x).mean()).backward()
"""


@pytest.mark.parametrize("script", ["Checkpointer", "ElasticLoop"])
def test_a_side_whose_network_drops_everything_stops_and_the_other_goes_on(
    tmp_path: Path, script: str
) -> None:
    """Nothing is reset and nobody is told: packets go nowhere, as in a partition."""
    arguments = f"import sys\nsys.argv = [sys.argv[0], {str(tmp_path)!r}, '1000000', '{{}}']\n"
    job = Job(tmp_path, LOOP if script == "ElasticLoop" else arguments + ALONE, nodes="1:1")
    network = Proxy(("127.0.0.1", job.port), ("127.0.0.1", 0))
    coordinator = subprocess.Popen(
        [
            *(sys.executable, "-m", "elastic_trainer.coordinator", "--port", str(job.port)),
            *("--job", job.name, "--heartbeat-timeout", "2", "--parent", str(os.getpid())),
        ]
    )
    storage = Storage(tmp_path / "commits")
    dedicated = {"VOLCANO_ELASTIC_COORDINATOR": "dedicated"}
    try:
        job.until("the coordinator serves", lambda told: told["phase"] == "forming")
        through = ("--rdzv-endpoint", f"127.0.0.1:{network.port}")
        job.start(1, environment=dedicated, options=through)
        job.until("it has committed", lambda _: bool(storage.commits()))
        network.open.clear()
        told = job.until("it is given up", lambda told: told["phase"] == "forming")
        cut_off = storage.commits()[0]
        job.until("it goes on alone", lambda _: storage.commits()[0].step > cut_off.step)
        job.start(2, environment=dedicated)
        job.stepping(1, after_round=told["round"])
        assert job.wait(1) != 0
        assert "commits nothing any more: it was cut off" in job.logs()
        network.open.set()
        job.until(
            "the other side's commits alone are left",
            lambda _: min(commit.run for commit in storage.commits()) > cut_off.run,
        )
        assert len({commit.run for commit in storage.commits()}) == 1
    finally:
        job.close()
        network.close()
        coordinator.kill()
        coordinator.wait()
