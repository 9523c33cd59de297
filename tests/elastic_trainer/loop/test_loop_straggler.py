"""A rank that is slow by itself, in a real round: it is named, though no step of it is longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer.torchrun_job import Job

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
data = ElasticDataset(TensorDataset(torch.ones(6000, 8)), batch_size=2, epochs=100)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=10**6)
for (x,) in loop:
    with loop.step():
        if loop.rank == 1:
            time.sleep(0.4)
        (loop.weight * loop.model(x).mean()).backward()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="3:3")
    yield job
    job.close()


def test_a_rank_that_is_slow_by_itself_is_named_and_those_that_wait_for_it_are_not(
    job: Job,
) -> None:
    job.start(0, 1, 2, environment={"VOLCANO_ELASTIC_STRAGGLER_SECONDS": "1"})
    told = job.until(
        "it alone is named",  # on a busy machine another one may be slow for a while
        lambda told: [one["rank"] for one in told.get("stragglers", ())] == [1],
    )
    (found,) = told["stragglers"]
    assert (found["worker"], found["cause"]) == (1, "compute")
    assert found["batch_seconds"] >= 0.4 and found["score"] > 3.5
    assert told["batch_seconds"]["network"] > 0, "the others wait"
