"""A state that is in memory in two layouts of one world is loaded from parts of one of them."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.checkpoint.sealing import SEALING
from tests.elastic_trainer.torch_process import TorchProcess

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, shutil, sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.utils.data import TensorDataset

from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint import sharded
from elastic_trainer.checkpoint.memory import Memory

sharded.Shards._store = lambda *_: False  # storage is down
sharded.Shards.write = None  # and not waited for
rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
samples = TensorDataset(torch.linspace(-1, 1, 48 * 6).reshape(48, 6))
mine = folder / f"node-{rank}"
said = {}
"""
SCRIPT += SEALING
SCRIPT += """

def train(name, world, steps=0, ranks=None, dim=0):
    "In a world of its own: what was restored, and what is there after `steps` more."
    if rank >= world:
        return
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(0 if name == "rows" else rank)  # unlike, so that what isn't restored shows
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2))
    mesh = DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=("r", "s")) if ranks else None
    place = lambda one: Shard(dim if one.ndim > 1 else 0)
    for part in (model[0], model):
        fully_shard(part, mesh=mesh, shard_placement_fn=place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = ElasticDataset(samples, batch_size=4, epochs=50)
    mine.mkdir(exist_ok=True)
    memory = Memory(mine, Sealing(), every_rank=True, local_rank=0, local_world=1)
    with_ = Checkpointer(
        folder / "commits", model=model, optimizer=optimizer, data=data, memory=memory, every=1,
    )

    def whole():
        tensors = [p.full_tensor() for p in model.parameters()]
        if data.steps:
            tensors += [optimizer.state[p]["exp_avg"].full_tensor() for p in model.parameters()]
        return [data.steps, [t.flatten().tolist() for t in tensors]]

    said[name] = [whole()]
    for (inputs,) in data if steps else ():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        with_.step()
        steps -= 1
        if not steps:
            break
    with_._shards.await_mirrors()
    said[name].append(whole())
    dist.barrier()
    dist.destroy_process_group()
    store.set(f"{name}/{rank}", ""), store.wait([f"{name}/{one}" for one in range(world)])


def there():
    return {path: path.stat().st_mtime_ns for path in mine.glob("*-*-*")}


train("rows", 4, 2, [[0, 1], [2, 3]])
train("other ranks", 4, 1, [[0, 2], [1, 3]])
train("rows again", 4, 1, [[0, 1], [2, 3]])
before = there()
train("columns", 4, 0, [[0, 1], [2, 3]], dim=1)
# As a round's end may leave it: node 0 has half the state's columns, and half its rows.
for path, time in there().items():
    if ("mirror" in path.name) != (before.get(path) == time):
        path.unlink()
train("one", 1)
(folder / f"said-{rank}.json").write_text(json.dumps(said))
os._exit(0)
"""


def test_no_part_is_taken_for_another_layouts(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    processes = [TorchProcess(SCRIPT, rank, store.port, tmp_path) for rank in range(4)]
    try:
        outputs = ["".join(process.communicate(timeout=300)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, "\n".join(outputs)
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(4)]
    for one in said:
        names = ["rows", "other ranks", "rows again", "columns"]
        for earlier, later in itertools.pairwise(names):
            assert one[later][0] == said[0][earlier][1]
        assert one["columns"][0][0] == 4
    assert said[0]["one"][0][0] == 0, "a quarter of it is nowhere"
