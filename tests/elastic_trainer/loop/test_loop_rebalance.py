"""A rank that is slow takes fewer samples, in real rounds, and as many again once it isn't slow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_trainer.data.audit import verify

from tests.elastic_trainer.torchrun_job import Job, reason

pytestmark = pytest.mark.process

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = ElasticDataset(
    TensorDataset(torch.ones(997, 8)), batch_size=40, global_batch=60, epochs=10**6,
    audit=folder / "audit",
)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=10**6)
for (x,) in loop:
    with loop.step():
        slow = loop.rank == 1 and not (folder / "mended").exists()
        time.sleep((0.004 if slow else 0.001) * len(x))
        (loop.weight * loop.model(x).mean()).backward()
    if loop.stepped and (folder / "end").exists() and loop.steps % 20 == 0:
        data.epochs = min(data.epochs, data.cursor.epoch + 1)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="3:3")
    yield job
    job.close()


def test_a_slow_rank_takes_less_and_as_much_again_when_it_is_no_longer_slow(job: Job) -> None:
    job.start(
        *(0, 1, 2),
        environment={
            "VOLCANO_ELASTIC_STRAGGLER_SECONDS": "0.5",
            "VOLCANO_ELASTIC_STRAGGLERS": "Rebalance",
        },
    )
    # A busy machine may have it by way of another share, or slow another one for a while.
    told = job.until(
        "it alone takes about a third",
        lambda told: list(told["shares"]) == ["1"] and 0.25 <= told["shares"]["1"] < 0.6,
    )
    said = "other shares of a step's samples: worker 1 (local rank 0): "
    assert any(said in one["reason"] for one in told["rounds"])
    begun = told["step"]
    job.until("they go on", lambda told: told["step"] >= begun + 40)
    (job.folder / "mended").touch()
    # On a busy machine perhaps by way of another share, as its speed is measured.
    told = job.until(
        "it takes as much",
        lambda told: told["world"] == 3 and reason(told) == "equal shares again",
    )
    assert told["shares"] == {}
    (job.folder / "end").touch()
    assert [job.wait(index) for index in range(3)] == [0, 0, 0]
    taken = [
        json.loads(line)
        for path in (job.folder / "audit").iterdir()
        for line in path.read_text().splitlines()
    ]
    epochs = 1 + max(one["epoch"] for one in taken if "epoch" in one)
    assert verify(job.folder / "audit", 997, epochs).ok, "each sample once in each epoch"
