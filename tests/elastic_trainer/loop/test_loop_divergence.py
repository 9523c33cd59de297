"""One bit that flips in one rank's memory, in real rounds: it is named, and gets the others' state.

The model has what differs from rank to rank by right: batch norm's buffers, and dropout.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

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
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)
data = ElasticDataset(TensorDataset(torch.randn(6000, 8)), batch_size=4, epochs=1000)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=10)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).pow(2).mean()).backward()
    time.sleep(0.01)
    wanted = folder / f"flip-{loop.rank}"
    if loop.stepped and wanted.exists():
        wanted.unlink()
        with torch.no_grad():
            net[0].weight.view(torch.int32)[3, 5] ^= 1 << 9
    if (folder / "stop").exists() and loop.stepped and loop.steps % 50 == 0:
        torch.save(net[0].weight, folder / f"end-{loop.rank}.part")
        (folder / f"end-{loop.rank}.part").rename(folder / f"end-{loop.rank}")
        while True:
            time.sleep(1)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, nodes="1:3")
    yield job
    job.close()


def differ(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return those that differ still."""
    return [one for one in told["diverged"] if one["until"] is None]


def metrics(job: Job) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{job.port + 1}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def commits_further(job: Job, commits: int = 30) -> None:
    begun = job.wait_for_status()["step"]
    job.until("steps", lambda told: told["step"] >= begun + 10 * commits)


def test_a_rank_with_a_flipped_bit_is_named_and_takes_the_others_state(job: Job) -> None:
    job.start(0, 1, 2)
    job.until("three train", lambda told: told["world"] == 3 and told["step"] >= 30)
    assert job.wait_for_status()["diverged"] == []
    (job.folder / "flip-0").touch()  # rank 0: whoever lacks the state takes it from the first
    told = job.until(
        "the round ends for it",
        lambda told: "another state" in reason(told) and not differ(told),
    )
    (found,) = told["diverged"]
    assert (found["rank"], found["worker"], found["outvoted"]) == (0, 0, True)
    assert 0 < found["agreed_step"] < found["step"] and found["since"] < found["until"]
    assert told["rounds"][-1]["reason"].startswith("worker 0 (local rank 0, node ")
    assert re.search(r"_diverged_ranks_total\{[^}]*\} 1$", metrics(job), re.MULTILINE)
    job.until("they go on", lambda told: told["step"] >= 100)
    commits_further(job, 10)
    assert job.wait_for_status()["diverged"] == [found]
    (job.folder / "stop").touch()
    ends = [job.folder / f"end-{rank}" for rank in range(3)]
    job.until("all have stopped", lambda told: all(end.exists() for end in ends))
    first, *others = (torch.load(end) for end in ends)
    assert all(torch.equal(first, other) for other in others)


def test_of_two_that_differ_both_are_named_and_no_round_ends(job: Job) -> None:
    job.start(0, 1)
    job.until("two train", lambda told: told["world"] == 2 and told["step"] >= 30)
    (job.folder / "flip-1").touch()
    told = job.until("both are named", lambda told: len(differ(told)) == 2)
    number = told["round"]
    assert sorted(one["rank"] for one in told["diverged"]) == [0, 1]
    for one in told["diverged"]:
        assert not one["outvoted"] and 0 < one["agreed_step"] < one["step"]
    commits_further(job, 10)
    told = job.wait_for_status()
    assert told["round"] == number and len(differ(told)) == 2


def test_a_rank_that_does_not_save_is_compared_too(job: Job) -> None:
    job.start(0, options=("--nproc-per-node", "3"))
    job.until("they train", lambda told: told["step"] >= 30)
    assert job.wait_for_status()["diverged"] == []
    (job.folder / "flip-2").touch()
    told = job.until("it is named", lambda told: "local rank 2" in reason(told))
    begun = told["round"]
    commits_further(job, 10)
    told = job.wait_for_status()
    assert told["round"] == begun and [one["rank"] for one in told["diverged"]] == [2]
    assert not differ(told)
