"""A sharded model whose world changes takes its state from memory: storage has nothing here."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.checkpoint.sealing import SEALING
from tests.elastic_trainer.torch_process import TorchProcess

pytestmark = pytest.mark.process

SCRIPT = """
import hashlib, json, os, shutil, sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import TensorDataset

from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint import sharded
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.store.slot import PAYLOAD, Slot

sharded.Shards._store = lambda *_: False  # storage is down
sharded.Shards.write = None  # and not waited for
rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
values = torch.linspace(-1, 1, 48 * 6).reshape(48, 6)
samples = TensorDataset(values, values.sum(1, keepdim=True))
mine = folder / f"node-{rank}"
said = {}
unmirrored = []
"""
SCRIPT += SEALING
SCRIPT += """

def train(name, world, steps=0, mesh=None):
    "In a world of its own: what was restored, and what is there after `steps` more."
    if rank >= world:
        return
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(rank)  # unlike, so that what isn't restored shows
    model, averaged = (
        torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        )
        for _ in range(2)
    )
    average = AveragedModel(averaged, avg_fn=get_ema_avg_fn(0.9))
    made_mesh = None if mesh is None else init_device_mesh("cpu", mesh, mesh_dim_names=("r", "s"))
    for one in (model, average.module):
        fully_shard(one[0], mesh=made_mesh)
        fully_shard(one, mesh=made_mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (rank + 1))
    second = torch.optim.SGD(
        [dict(params=[model[3].bias]), dict(params=[model[0].weight], lr=0.02)],
        lr=0.01 * (rank + 1), momentum=0.9,
    )
    extra = {"average": average, "second": second}
    data = ElasticDataset(samples, batch_size=12 // world, epochs=50)
    mine.mkdir(exist_ok=True)
    memory = Memory(mine, Sealing(), every_rank=True, local_rank=0, local_world=1)
    with_ = Checkpointer(
        folder / "commits", model=model, optimizer=optimizer, data=data, extra=extra,
        memory=memory, every=1 if steps > 1 else 10**9,
    )

    def whole():
        tensors = [p.full_tensor() for p in model.parameters()]
        if data.steps:
            tensors += [
                optimizer.state[p][name].full_tensor()
                for p in model.parameters() for name in ("exp_avg", "exp_avg_sq")
            ]
        tensors += [p.detach().full_tensor() for p in average.parameters()]
        tensors += [one["momentum_buffer"].full_tensor() for one in second.state.values()]
        tensors.append(average.n_averaged)
        sums = [round(t.double().sum().item(), 12) for t in tensors]
        rates = [one.param_groups[0]["lr"] for one in (optimizer, second)]
        bits = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors))
        return [data.steps, *rates, *sums, bits.hexdigest()]

    said[name] = [whole()]
    fence = steps > 0
    for inputs, wanted in data:
        if not steps:
            break
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        second.step()
        average.update_parameters(model)
        with_.step()
        steps -= 1
    if fence:  # at which nobody leaves, as it is told first
        with_.commit(stored=False, memory_stays=True, all_stay=True)
        made = (with_.run, data.steps)
        unmirrored.append(memory.mirror.kept != made)
        with_.commit(stored=False, memory_stays=True)
        assert memory.mirror.kept == made
    said[name].append(whole())
    dist.barrier()
    dist.destroy_process_group()


train("three", 3, 6)
store.set(f"three/{rank}", ""), store.wait([f"three/{one}" for one in range(3)])
if rank == 2:
    shutil.rmtree(mine)  # its node is lost with its memory
train("two", 2, 1)
store.set(f"two/{rank}", ""), store.wait([f"two/{one}" for one in range(3)])
train("three again", 3, 1)
train("replicated", 4, 1, mesh=(2, 2))
store.set(f"r/{rank}", ""), store.wait([f"r/{one}" for one in range(4)])
for path in mine.glob("*-*-*"):
    label = Slot(path).sealed()
    if label is not None and (label.rank, label.world) == (0, 4):  # its mirror, too
        with path.open("r+b") as file:
            end = PAYLOAD + label.payload - 1
            file.seek(end)
            last = file.read(1)[0]
            file.seek(end)
            file.write(bytes([last ^ 1]))  # rank 2 has the same
if rank == 3:
    shutil.rmtree(mine)
train("three of four", 3)
assert unmirrored[-1:] in ([], [True]), unmirrored  # what wasn't saved before is mirrored later
(folder / f"said-{rank}.json").write_text(json.dumps(said))
os._exit(0)
"""


def test_a_world_that_changes_takes_its_state_from_memory(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    processes = [TorchProcess(SCRIPT, rank, store.port, tmp_path) for rank in range(4)]
    try:
        outputs = ["".join(process.communicate(timeout=300)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, "\n".join(outputs)
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(4)]
    for rank, one in enumerate(said[:3]):
        assert one["three of four"][0] == said[0]["replicated"][1]
        if rank == 2:
            continue
        assert one["three"][1][0] == 6
        assert one["two"][0] == said[0]["three"][1]
        assert one["three again"][0] == said[0]["two"][1], rank
        assert one["replicated"][0] == said[0]["three again"][1]
        assert one["replicated"][1][0] == 9
