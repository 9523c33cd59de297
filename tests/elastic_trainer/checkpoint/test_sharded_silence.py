"""Sharded commits on a storage that is silent for one rank: torch.distributed.checkpoint's own
reads and writes are bounded, and nobody takes what wasn't done for done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.checkpoint.two_ranks import run_two_ranks

SCRIPT = """
import faulthandler, json, os, sys, threading
from datetime import timedelta
from pathlib import Path

faulthandler.dump_traceback_later(200, exit=True)
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from elastic_trainer import Checkpointer, ElasticDataset, WorkerLink
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.store import owned_folder
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.slot import Slot
from elastic_trainer.store.storage import Storage

rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
owned_folder.SLOW_SECONDS = 2.0
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
samples = TensorDataset(torch.ones(640, 6), torch.ones(640, 1))
silent, returns = threading.Event(), threading.Event()
said = {}


def blocking(name):
    "A system call on the parts of a commit that returns once the server does."
    call = getattr(os, name)

    def blocked(descriptor, *arguments):
        part = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".distcp")
        if rank == 1 and part and silent.is_set():
            said["moved before"] = Link.moved
            returns.wait()
        return call(descriptor, *arguments)

    setattr(os, name, blocked)


for name in ("pread", "write"):
    blocking(name)


class Link(WorkerLink):
    "Of an agent that verifies at once."

    moved = 0

    def __init__(self):
        super().__init__(None)

    def saved(self, path, *rest):
        assert Slot(Path(path)).verify() is not None

    def transferred(self, count):
        Link.moved += count


def make(**given):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = ElasticDataset(samples, batch_size=4, epochs=50)
    link = Link()
    checkpointer = Checkpointer(
        folder / "commits", model=model, optimizer=optimizer, data=data, link=link,
        storage_patience=timedelta(0), **given,
    )
    return model, optimizer, data, checkpointer


def train(made, steps):
    model, optimizer, data, checkpointer = made
    for inputs, wanted in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        checkpointer.step()
        steps -= 1
        if not steps:
            return


def server_returns():
    returns.set()
    for thread in threading.enumerate():
        if thread.name == "ask-storage":
            thread.join()
    silent.clear()
    returns.clear()
    dist.barrier()


(folder / f"slots-{rank}").mkdir()
memory = Memory(folder / f"slots-{rank}", Link(), every_rank=True, local_rank=rank, local_world=2)
made = make(memory=memory, every=3)
train(made, 3)
made[3]._shards.flush()
silent.set()
dist.barrier()
train(made, 5)  # the commit of step 6 hangs meanwhile
said["trained to"] = made[2].steps
try:
    made[3].commit(stored=True)
except StorageError as error:
    said["refused"] = str(error)
said["commits meanwhile"] = [c.step for c in Storage(folder / "commits").commits()]
server_returns()
said["commits after"] = [c.step for c in Storage(folder / "commits").commits()]
train(made, 1)
made[3].commit(stored=True)
dist.barrier()

silent.set()
try:
    make()
except StorageError as error:
    said["not read"] = str(error)
said["moved"] = Link.moved
server_returns()
said["read"] = make()[2].steps
dist.barrier()
dist.destroy_process_group()
(folder / f"said-{rank}.json").write_text(json.dumps(said))
"""


@pytest.mark.process
def test_a_part_that_hangs_costs_its_commit_alone_and_a_restore_says_so(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path, timeout=240)
    for rank in (0, 1):
        said = json.loads((tmp_path / f"said-{rank}.json").read_text())
        assert said["trained to"] == 8
        assert "step 8 can't be committed" in said["refused"]
        assert "no answer for 2 s" in said["refused"]
        assert said["commits meanwhile"] == said["commits after"] == [3]
        assert "step 9 can't be read" in said["not read"]
        assert said["read"] == 9
        if rank == 1:
            assert said["moved"] == said["moved before"], "it looks silent while it is"
    storage = Storage(tmp_path / "commits")
    for commit in storage.commits():
        for name in commit.files:
            storage.verify(commit, name)
    assert [commit.step for commit in storage.commits()] == [9, 3]
