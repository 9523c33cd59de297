"""A stream of shards under real torchrun agents: none of its samples is lost or repeated."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from elastic_trainer.data.audit import verify
from elastic_trainer.loop.state_feed import FOLLOW_VARIABLE

from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process

SHARDS = {f"shard-{number}": (number * 37) % 101 for number in range(24)}
"""One of them is empty."""

SCRIPT = f"""
import logging, sys, time
from pathlib import Path
import torch
from elastic_trainer import ElasticLoop, ElasticStream

logging.basicConfig(level=logging.INFO)
folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
shards = {SHARDS}

def read(shard):
    for index in range(shards[shard]):
        yield torch.full((4,), index / 100)

net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
data = ElasticStream(
    list(shards), read=read, batch_size=4, shuffle=20, interleave=2, epochs=10**6,
    audit=folder / "audit",
)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=50)
for x in loop:
    x = torch.cat((x, x))  # batch norm wants more than one
    with loop.step():
        (loop.weight * loop.model(x).square().mean()).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)  # so that all ranks end alike
    time.sleep(0.005)
    if enough:
        data.epochs = data.cursor.epoch + bool(data.cursor.next)
if loop.rank == 0:
    (folder / "epochs").write_text(str(data.epochs))
    (folder / "counted").write_text(str(int(net[0].num_batches_tracked) - loop.steps))
"""


MESH = """
from torch.distributed.device_mesh import init_device_mesh

def mesh():
    shape = (torch.distributed.get_world_size() // 2, 2)
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))["dp"]

"""


def test_ranks_that_share_samples_go_on_when_some_are_lost(tmp_path: Path) -> None:
    script = SCRIPT.replace("data = ", MESH + "data = ").replace("epochs=", "mesh=mesh, epochs=")
    job = Job(tmp_path, script)
    try:
        job.start(0, 1, options=["--nproc-per-node", "2"])
        told = job.stepping(2)
        os.kill(told["pids"]["1"][0], signal.SIGKILL)
        job.stepping(2, after_round=told["round"])
        (tmp_path / "enough").touch()
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
        epochs = int((tmp_path / "epochs").read_text())
        report = verify(tmp_path / "audit", sum(SHARDS.values()), epochs, SHARDS)
        assert report.ok, report
    finally:
        job.close()


def test_shards_go_from_hand_to_hand(tmp_path: Path) -> None:
    job = Job(tmp_path, SCRIPT)
    followed = {FOLLOW_VARIABLE: "0"}  # newcomers come to the cursor while the others go on
    try:
        job.start(0, 1, environment=followed)
        told = job.stepping(2)
        survivor = told["pids"]["0"]
        job.start(2, environment=followed)
        told = job.stepping(3, after_round=told["round"])
        for _ in range(3):  # its shards are read on, and come back to another process
            os.kill(told["pids"]["1"][0], signal.SIGKILL)
            told = job.stepping(3, after_round=told["round"])
        job.agents[2].send_signal(signal.SIGTERM)
        told = job.stepping(2, after_round=told["round"])
        assert told["pids"]["0"] == survivor
        os.kill(told["pids"]["0"][0], signal.SIGKILL)
        job.stepping(2, after_round=told["round"])
        (tmp_path / "enough").touch()
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
        epochs = int((tmp_path / "epochs").read_text())
        report = verify(tmp_path / "audit", sum(SHARDS.values()), epochs, SHARDS)
        assert report.ok, report
        assert report.runs >= 7
        assert "this newcomer has followed the others" in job.logs()
        # A peer that is lost while ranks agree on a batch undoes nothing that was applied.
        assert (tmp_path / "counted").read_text() == "0"
    finally:
        job.close()
