"""A parameter that has had a gradient on some ranks only: its optimizer's state comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.elastic_trainer.checkpoint.sealing import SEALING
from tests.elastic_trainer.checkpoint.two_ranks import run_two_ranks

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint import sharded
from elastic_trainer.checkpoint.memory import Memory

rank, port, folder, has = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
samples = TensorDataset(torch.linspace(-1, 1, 8 * 3).reshape(8, 3))
said, loads = {}, []
load = sharded.Shards.load
sharded.Shards.load = lambda *given: loads.append(1) or load(*given)
"""
SCRIPT += SEALING
SCRIPT += """

def train(name, world, to, slots, steps=0):
    "In a world of its own; returns the whole state of the one that has gradients here and there."
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(rank)  # unlike, so that what isn't restored shows
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4, bias=False))
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    data = ElasticDataset(samples, batch_size=4 // world, epochs=50)
    mine = folder / f"{slots}-{rank}"
    mine.mkdir(exist_ok=True)
    memory = Memory(mine, Sealing(), every_rank=True, local_rank=0, local_world=1)
    checkpointer = Checkpointer(
        folder / to, model=model, optimizer=optimizer, data=data, memory=memory, every=1
    )
    last = model[1].weight
    for (inputs,) in data if steps else ():
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        if rank != has:
            last.grad = None
        optimizer.step()
        checkpointer.step()
        steps -= 1
        if not steps:
            break
    held = optimizer.state.get(last, {})
    if world > 1:
        checkpointer.commit(stored=True)
        checkpointer._shards.flush()
    said[name] = {
        key: (value.to_local() if value.ndim else value).tolist()
        for key, value in held.items()
    }
    said[name + " in all"] = len(optimizer.state)
    dist.barrier()
    dist.destroy_process_group()


train("two", 2, "commits", "slots", 3)
train("again", 2, "commits", "slots")
if rank == 0:
    train("from memory", 1, "commits", "slots")
    assert not loads
    train("from storage", 1, "commits", "none")
    assert loads
(folder / f"said-{rank}.json").write_text(json.dumps(said))
os._exit(0)
"""


@pytest.mark.parametrize("has", [0, 1])
def test_what_had_no_gradient_on_one_rank_is_saved_and_divided_anew(
    tmp_path: Path, has: int
) -> None:
    outputs = run_two_ranks(SCRIPT, tmp_path, has)
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1)]
    for one in said:
        assert one["again"] == one["two"], outputs
    assert not said[1 - has]["two"]
    held = said[has]["two"]
    nothing = [[0.0] * 4] * 2
    for source in ("from memory", "from storage"):
        found = said[0][source]
        assert found["step"] == held["step"] == 3
        for key in ("exp_avg", "exp_avg_sq"):
            shards = (held[key], nothing) if has == 0 else (nothing, held[key])
            assert found[key] == [*shards[0], *shards[1]], (source, key)
        assert said[0][f"{source} in all"] == 3
