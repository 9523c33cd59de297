"""Gradients of four real ranks are those of one process, also where ranks share samples."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from elastic_trainer.data.audit import verify
from elastic_trainer.data.coordinate import agreed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

SHARDS = {"a": 31, "b": 5, "c": 0, "d": 17, "e": 8}

SCRIPT = f"""
import json, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import Dataset
from elastic_trainer import ElasticDataset, ElasticStream, Packing

rank, port, shared, folder = sys.argv[1:]
rank = int(rank)
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False, timeout=timedelta(seconds=60))
store.set(f"here/{{rank}}", "")
store.wait([f"here/{{one}}" for one in range(4)], timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
mesh = None
if shared == "mesh":
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
shards = {SHARDS}

def read(shard):
    return [[ord(shard), *range(3 + (7 * n + len(shard)) % 11)] for n in range(shards[shard])]

class Documents(Dataset):
    documents = [document for shard in shards for document in read(shard)]
    __len__ = lambda self: len(self.documents)
    __getitem__ = lambda self, index: self.documents[index]

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Embedding(128, 5), torch.nn.Linear(5, 128)).double()

def train(kind):
    given = dict(epochs=2, mesh=mesh, audit=folder + "/" + kind, seed=4)
    if kind == "dataset":
        data = ElasticDataset(Documents(), batch_size=3, global_batch=11, collate=list, **given)
    else:
        step = dict(
            samples=dict(batch_size=3, global_batch=11, collate=list),
            tokens=dict(max_tokens=40),
            cut=dict(pack=Packing(rows=2, length=16)),
            whole=dict(pack=Packing(rows=2, length=16, cut=False)),
        )[kind]
        data = ElasticStream(list(shards), read=read, shuffle=4, **step, **given)

    def loss(batch):
        # The sum of the losses, and of how many it is.
        if isinstance(batch, dict):
            logits = net(batch["input_ids"])[:, :-1].flatten(0, 1)
            labels = batch["labels"][:, 1:].flatten()
            sum_ = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            return sum_, int((labels != -100).sum())
        by_sample = torch.stack([net(torch.tensor(one)).square().sum() for one in batch])
        if kind == "tokens":
            return by_sample.sum(), sum(map(len, batch))
        by_sample = by_sample / torch.tensor([len(one) for one in batch])
        return by_sample.sum(), len(batch)

    worst, taken, idle = 0.0, [], 0
    for batch in data:
        sum_, count = loss(batch)
        (data.weight * sum_ / count).backward()
        taken.append((batch if data.weight else None))
        idle += not data.weight
        if not data.last:
            continue
        gradients = [parameter.grad for parameter in net.parameters()]
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= 4
        said = [None] * 4
        dist.all_gather_object(said, (data.coordinate.rank, taken))
        by_coordinate = {{}}
        for coordinate, batches in said:
            assert repr(by_coordinate.setdefault(coordinate, batches)) == repr(batches)
        assert len(by_coordinate) == (2 if mesh else 4)
        batches = [one for each in by_coordinate.values() for one in each if one is not None]
        sums = list(map(loss, batches))
        mean = sum(sum_ for sum_, _ in sums) / sum(count for _, count in sums)
        for gradient, expected in zip(gradients, torch.autograd.grad(mean, net.parameters())):
            worst = max(worst, (gradient - expected).abs().max().item())
        net.zero_grad()
        taken = []
        data.applied()
    said = [None] * 4
    dist.all_gather_object(said, (worst, idle, data.steps))
    return (max(worst for worst, _, _ in said), sum(idle for _, idle, _ in said), data.steps)

kinds = ("dataset", "samples", "tokens", "cut", "whole")
found = dict(zip(kinds, map(train, kinds)))
dist.barrier()
print(json.dumps(found), flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("shared", ["mesh", "alone"])
def test_gradients_are_those_of_one_process(shared: str, tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port, shared, tmp_path) for rank in range(4)]
    try:
        for process in ranks:
            out, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
        found = json.loads(out)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert len(found) == 5
    assert sum(idle for _, idle, _ in found.values()) > 0, "no rank was ever without a sample"
    for kind, (worst, _, steps) in found.items():
        assert worst < 1e-6, kind
        assert steps > 6, kind
        shards = None if kind == "dataset" else SHARDS
        report = verify(tmp_path / kind, sum(SHARDS.values()), 2, shards)
        assert report.ok, (kind, report)


class TestCoordinates:
    def test_each_coordinate_has_a_speaker(self) -> None:
        found = agreed([(0, 2), (0, 2), (1, 2), (1, 2)], 3)
        assert (found.rank, found.world, found.first) == (1, 2, False)
        assert (found.speakers, found.numbers) == ((0, 2), (0, 0, 1, 1))

    @pytest.mark.parametrize(
        "said",
        [
            [(0, 2), (0, 2), (1, 2)],  # not equally often
            [(0, 1), (0, 2)],  # of two meshes
            [(0, 2), (-1, 2)],  # not all are in it
            [(0, 3), (1, 3)],
        ],
    )
    def test_what_is_no_mesh_of_all_ranks_is_refused(self, said: list[tuple[int, int]]) -> None:
        with pytest.raises(ValueError, match="expected each coordinate of one mesh equally often"):
            agreed(said, 0)
