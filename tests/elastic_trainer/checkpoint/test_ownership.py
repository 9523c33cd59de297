"""A folder has one owner among real processes: two jobs, two sides of a partition, pods that
share nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.data.audit import verify
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.torch_process import TorchProcess
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

ALONE = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.data.dataset import ElasticDataset

folder, epochs, given = Path(sys.argv[1]), int(sys.argv[2]), eval(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
inputs = torch.randn(64, 4)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, epochs=epochs,
    audit=folder / "audit",
)
with Checkpointer(
    folder / "commits", model=net, optimizer=optimizer, data=data, every=2, **given
) as checkpointer:
    print("begins at", data.steps, flush=True)
    for x, y in data:
        optimizer.zero_grad()
        (data.weight * torch.nn.functional.mse_loss(net(x), y)).backward()
        optimizer.step()
        checkpointer.step()
        print(data.steps, flush=True)
        if epochs > 1000:
            time.sleep(0.02)
        while epochs > 1000 and (folder / "wait").exists():
            time.sleep(0.02)
"""


@pytest.fixture
def processes() -> Iterator[list[TorchProcess]]:
    started: list[TorchProcess] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(
    processes: list[TorchProcess], folder: Path, uid: str, epochs: int, **given: Any
) -> TorchProcess:
    environment = {
        **{name: value for name, value in os.environ.items() if "ELASTIC" not in name},
        "PET_RDZV_ID": uid,
        "VOLCANO_ELASTIC_JOB": f"team/{uid}",
        "VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS": "5",
    }
    processes.append(TorchProcess(ALONE, folder, epochs, repr(given), environment=environment))
    return processes[-1]


def test_a_second_job_in_the_folder_is_refused_and_may_continue_it_when_told(
    tmp_path: Path, processes: list[TorchProcess]
) -> None:
    out, errors = start(processes, tmp_path, "first", 1).communicate(timeout=200)
    assert out.startswith("begins at 0"), errors
    second = start(processes, tmp_path, "second", 2)
    out, errors = second.communicate(timeout=200)
    assert second.returncode == 1 and out == ""
    assert "belongs to job team/first (first), this is team/second (second)" in errors
    assert 'resume_from="first"' in errors
    out, errors = start(processes, tmp_path, "second", 2, resume_from="first").communicate(
        timeout=200
    )
    assert out.startswith("begins at 8"), errors
    assert Storage(tmp_path / "commits").commits()[0].step == 16
    out, errors = start(processes, tmp_path, "first", 3).communicate(timeout=200)
    assert "belongs to job team/second" in errors


def test_of_two_sides_that_both_train_one_goes_on_and_the_other_stops_and_says_why(
    tmp_path: Path, processes: list[TorchProcess]
) -> None:
    first = start(processes, tmp_path, "job", 10**6)
    for line in first.stdout:
        if line.strip() == "6":
            break
    (tmp_path / "wait").touch()  # else it gets beyond the second's end while that starts
    second = start(processes, tmp_path, "job", 30)
    begun = second.stdout.readline()
    (tmp_path / "wait").unlink()
    _, errors = first.communicate(timeout=200)
    assert first.returncode == 1
    assert "commits nothing any more: it was cut off" in errors
    _, errors = second.communicate(timeout=200)
    assert second.returncode == 0, errors
    assert int(begun.split()[2]) >= 6
    # What the first had committed when it was fenced is part of the history, and nothing else.
    commits = Storage(tmp_path / "commits").commits()
    assert commits[0].step == 30 * 8
    assert len({commit.run for commit in commits}) == 1
    assert verify(tmp_path / "audit", 64, 30).ok


JOB = """
import os, sys
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.data.dataset import ElasticDataset

torch.distributed.init_process_group("gloo")
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
data = ElasticDataset(TensorDataset(torch.randn(64, 4)), batch_size=8, epochs=1)
# Each node's own disk, at what its pod takes for the same path.
os.chdir(Path(sys.argv[1]) / os.environ["GROUP_RANK"])
Checkpointer("commits", model=net, optimizer=optimizer, data=data)
"""


def test_a_folder_that_the_pods_do_not_share_is_refused_at_the_start(tmp_path: Path) -> None:
    for node in ("0", "1"):
        (tmp_path / node).mkdir()
    job = Job(tmp_path, JOB, "2:2")
    try:
        job.start(0, 1)
        codes = [job.wait(index) for index in (0, 1)]
        assert all(codes), job.logs()
        assert "is not the same in all pods: expected training" in job.logs()
        assert "name a folder on a volume that all pods mount" in job.logs()
    finally:
        job.close()
