"""An error that would only repeat ends a job of real processes after the documented tries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

COMMON = """
import os, sys
from pathlib import Path
import torch
from torch.utils.data import Dataset
from elastic_trainer import ElasticDataset

torch.set_num_threads(1)
torch.manual_seed(0)
folder = Path(sys.argv[1])

class Data(Dataset):
    "One of its samples is damaged."
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 13:
            raise ValueError(f"sample {index} is damaged")
        return torch.ones(3)

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = ElasticDataset(Data(), batch_size=4, epochs=9)
"""

LOOP = (
    COMMON
    + """
from elastic_trainer import ElasticLoop

loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data)
for x in loop:
    with loop.step():
        loop.model(x).mean().backward()
"""
)

CHECKPOINTER = (
    COMMON
    + """
from torch.nn.parallel import DistributedDataParallel
from elastic_trainer import Checkpointer

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(net)
with Checkpointer(folder / "commits", model=model, optimizer=optimizer, data=data) as checkpointer:
    for x in data:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        checkpointer.step()
"""
)

ONE_CANT_START = """
import os
import torch.distributed
if os.environ["VOLCANO_ELASTIC_POD_INDEX"] == "1":
    import a_module_that_only_the_other_image_has
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()
"""


def ended(folder: Path, script: str, nodes: str) -> str:
    """All logs, once every agent has given up."""
    job = Job(folder, script, nodes)
    count = int(nodes.partition(":")[2])
    try:
        job.start(*range(count), restarts=50)
        assert [job.wait(index) for index in range(count)] == [1] * count, job.logs()
    finally:
        job.close()
    log = "\n".join(path.read_text() for path in folder.glob("agent-*.log"))
    assert "RendezvousClosedError" not in log, "torchrun's own frames would hide the reason"
    assert "[rank0]: [rank" not in log, "a prefix for each round"
    return log


@pytest.mark.parametrize("script", [LOOP, CHECKPOINTER], ids=["loop", "checkpointer"])
def test_a_damaged_sample_ends_the_job_whoever_draws_it(script: str, tmp_path: Path) -> None:
    log = ended(tmp_path, script, "1:3")
    tries = re.findall(r"restarting, round \d+, .* for: workers of worker \d failed", log)
    # A try that got a step further than the last one, as in a smaller world, doesn't count. Of 16
    # steps an epoch has in a world of one, so many can't all get further.
    assert 2 <= len(tries) <= 17, log
    told = re.findall(r"(?m)^volcano-elastic: rounds \d+ and \d+ ended in the same error.*", log)
    assert len(told) == 3, log
    assert all(one.endswith("train.py:19: ValueError: sample 13 is damaged") for one in told)


def test_a_node_that_can_not_start_ends_the_job_after_five_rounds(tmp_path: Path) -> None:
    log = ended(tmp_path, ONE_CANT_START, "2:2")
    assert "running, round 5, 2 nodes" in log and "round 6" not in log, log
    told = "volcano-elastic: 5 rounds in a row failed before their first step; the last: "
    assert log.count(f"{told}ModuleNotFoundError: No module named 'a_module_that_only") == 2, log
