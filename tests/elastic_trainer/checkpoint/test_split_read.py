"""A state in storage is read once, in parts, by all nodes that lack it."""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint.split_read import first_of_each, parts
from elastic_trainer.store.storage import Storage
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

NODES = (0, 0, 1, 2)
"""By rank."""
SIZE = 1_000_003
"""Numbers of the model."""

SCRIPT = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from elastic_trainer import Checkpointer, ElasticDataset
from elastic_trainer.checkpoint import restorer
from elastic_trainer.store.folder import LocalFolder

rank, port, node, folder, fails = sys.argv[1:]
rank, os.environ["GROUP_RANK"] = int(rank), node
restorer.SPLIT_BYTES = 1 << 20
read_span, load, came = LocalFolder.read_span, LocalFolder.load, [0, 0]

def count_span(self, name, begin, target):
    if fails == str(rank):
        raise PermissionError(13, "not here")
    came[0] += len(target)
    read_span(self, name, begin, target)

def count_load(self, name):
    content = load(self, name)
    came[1] += content.size
    return content

LocalFolder.read_span, LocalFolder.load = count_span, count_load
store = dist.TCPStore("127.0.0.1", int(port), is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
model = torch.nn.Linear(1, int(os.environ["SIZE"]), bias=False)
torch.nn.init.constant_(model.weight, -1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = ElasticDataset(torch.utils.data.TensorDataset(torch.ones(64, 1)), batch_size=4, epochs=9)
checkpointer = Checkpointer(
    folder, model=model, optimizer=optimizer, data=data, storage_patience=timedelta(0)
)
weight = model.weight.detach().flatten()
print(data.steps, weight[0].item(), weight[-1].item(), weight.sum().item(), *came, flush=True)
dist.barrier()
"""


def restored(folder: Path, fails: int | str = "") -> tuple[list[list[float]], str]:
    """Return what each rank says of the state that it restored, and rank 0's log."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    environment = os.environ | {"SIZE": str(SIZE)}
    ranks = [
        TorchProcess(SCRIPT, rank, store.port, node, folder, fails, environment=environment)
        for rank, node in enumerate(NODES)
    ]
    try:
        said, logs = [], []
        for process in ranks:
            out, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            said.append([float(word) for word in out.split()])
            logs.append(errors)
        return said, logs[0]
    finally:
        for process in ranks:
            process.kill()


def commit(folder: Path, steps: int = 2) -> int:
    """Save a state as one process does, at this step; return the bytes of its file."""
    model = torch.nn.Linear(1, SIZE, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(SIZE).remainder(7).reshape(-1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples = torch.utils.data.TensorDataset(torch.ones(64, 1))
    data = ElasticDataset(samples, batch_size=4, epochs=9)
    checkpointer = Checkpointer(folder, model=model, optimizer=optimizer, data=data)
    for (x,) in data:
        optimizer.zero_grad()
        (model(x).sum() * 0).backward()
        optimizer.step()
        checkpointer.step()
        if data.steps == steps:
            break
    checkpointer.commit(stored=True)
    return Storage(folder).commits()[0].size


def values(said: list[list[float]]) -> list[list[float]]:
    return [one[:4] for one in said]


EXPECTED = [2.0, 0.0, float((SIZE - 1) % 7), float(torch.arange(SIZE).remainder(7).float().sum())]


@pytest.mark.process
def test_each_node_reads_a_part_of_a_large_state_and_all_have_the_whole(tmp_path: Path) -> None:
    size = commit(tmp_path)
    said, _ = restored(tmp_path)
    assert values(said) == [EXPECTED] * len(NODES)
    read = [int(one[4]) for one in said]
    assert sum(read) == size, "storage gives it once"
    assert read[1] == 0, "one rank of a node reads"
    assert max(read) - min(read[0], *read[2:]) <= 1
    assert all(whole < size for *_, whole in said), "nobody reads the file alone"


@pytest.mark.process
def test_where_a_node_cannot_read_its_part_rank_0_reads_all(tmp_path: Path) -> None:
    size = commit(tmp_path)
    said, log = restored(tmp_path, fails=2)
    assert values(said) == [EXPECTED] * len(NODES)
    assert [int(whole) for *_, whole in said] == [size, 0, 0, 0]
    assert "rank 2 can't read its part" in log and "not here" in log


@pytest.mark.process
def test_a_damaged_commit_is_found_out_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    commit(tmp_path)
    commit(tmp_path, steps=4)
    newest = Storage(tmp_path).commits()[0]
    assert newest.step == 4
    damage(Path(Storage(tmp_path).path(newest)) / "state.pt")
    said, log = restored(tmp_path)
    assert values(said) == [EXPECTED] * len(NODES), "step 2"
    assert "expected digest" in log and "is damaged" in log


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), st.integers(0, 1 << 40))
def test_parts_are_all_of_it_once_and_one_rank_of_each_node_reads(
    nodes: list[str], size: int
) -> None:
    readers = first_of_each(nodes)
    assert [nodes[rank] for rank in readers] == list(dict.fromkeys(nodes))
    assert all(nodes.index(nodes[rank]) == rank for rank in readers)
    spans = parts(size, len(readers))
    assert [spans[0][0], spans[-1][1]] == [0, size]
    assert all(one[1] == other[0] for one, other in pairwise(spans))
    sizes = [end - begin for begin, end in spans]
    assert max(sizes) - min(sizes) <= 1
