"""ElasticLoop under real agents, on nodes that can't read the checkpoint folder for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.store.storage import Storage

import tests.elastic_trainer
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = ElasticDataset(TensorDataset(torch.ones(10**6, 4)), batch_size=1, epochs=1)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=2)
for (x,) in loop:
    with loop.step():
        time.sleep(0.02)
        (loop.weight * loop.model(x).mean()).backward()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


_FOLDER = Path(tests.elastic_trainer.__file__).parent
FAULTY = f"import runpy\nrunpy.run_path('{_FOLDER}/faulty_node/sitecustomize.py')\n"


def broken(job: Job) -> dict[str, str]:
    """The environment of a node, FAULTY, whose storage fails as long as the file `fault` says."""
    return {
        "FAULTY_STORAGE_FOLDER": str(job.folder / "commits"),
        "FAULTY_STORAGE_FILE": str(job.folder / "fault"),
        "VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS": "1",
    }


def test_a_newcomer_that_cannot_read_storage_takes_the_state_from_live_peers(job: Job) -> None:
    job.start(0)
    told = job.stepping(1)
    (job.folder / "fault").write_text("EIO")
    job.start(1, environment=broken(job), before=FAULTY)
    joined = job.stepping(2, after_round=told["round"])
    assert joined["pids"]["0"] == told["pids"]["0"]
    # Its state is the live one: who comes next goes on from it, in a run of its own.
    os.kill(told["pids"]["0"][0], signal.SIGKILL)
    os.killpg(job.agents[0].pid, signal.SIGKILL)
    job.agents.pop(0).wait()
    storage = Storage(job.folder / "commits")
    before = storage.commits()[0]

    def goes_on(_: object) -> bool:
        return storage.commits()[0].run > before.run

    job.start(0)  # as Kubernetes does, with the coordinator
    job.until("the newcomer's state is committed", goes_on)
    after = storage.commits()[0]
    assert after.step > before.step
    again = job.stepping(2)
    assert again["pids"]["1"] == joined["pids"]["1"], "the newcomer has lived on"


def test_where_nobody_is_live_storage_decides(job: Job) -> None:
    (job.folder / "fault").write_text("EIO")
    job.start(0, environment=broken(job), before=FAULTY)
    assert job.wait(0) != 0
    assert "Input/output error" in job.logs()
    assert not (job.folder / "commits").exists()


FORGETFUL = "import os\ndel os.environ['VOLCANO_ELASTIC_MEMORY']\n" + SCRIPT
"""Its nodes remember nothing of what they trained."""


def test_a_volume_that_is_not_mounted_is_waited_for_where_nobody_remembers(job: Job) -> None:
    job.script.write_text(FORGETFUL)
    job.start(0)
    told = job.stepping(1)
    storage = Storage(job.folder / "commits")
    job.until("there are commits", lambda _: bool(storage.commits()))
    before = storage.commits()[0]
    (job.folder / "commits").rename(job.folder / "unmounted")
    (job.folder / "commits").mkdir()
    os.kill(told["pids"]["0"][0], signal.SIGKILL)
    said = "this job's nodes know that step"
    job.until("the new worker says why it waits", lambda _: said in job.logs())
    assert os.listdir(job.folder / "commits") == []
    (job.folder / "commits").rmdir()
    (job.folder / "unmounted").rename(job.folder / "commits")
    job.until("training goes on", lambda _: storage.commits()[0].run > before.run)
    assert storage.commits()[0].step > before.step
