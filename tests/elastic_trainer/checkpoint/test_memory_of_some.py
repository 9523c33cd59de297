"""A sharded state whose nodes haven't all shared memory goes to storage, on all ranks."""

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
"""
SCRIPT += SEALING
SCRIPT += """
sharded.Shards._store = lambda *_: False  # storage gets what training waits for
rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
with_memory = int(sys.argv[4])  # ranks, in each world
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
samples = TensorDataset(torch.linspace(-1, 1, 48 * 6).reshape(48, 6))
mine = folder / f"node-{rank}"
mine.mkdir()
began = []
for world, some in (("first", with_memory), ("second", 1)):
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(world, store), rank=rank, world_size=2,
        timeout=timedelta(seconds=20),
    )
    torch.manual_seed(rank)
    model = torch.nn.Linear(6, 4)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = ElasticDataset(samples, batch_size=4, epochs=50)
    memory = Memory(mine, Sealing(), every_rank=True) if rank < some else None
    checkpointer = Checkpointer(
        folder / "commits", model=model, optimizer=optimizer, data=data, memory=memory, every=1,
    )
    began.append(data.steps)
    for (inputs,) in data:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        checkpointer.step()
        if data.steps == began[-1] + 2:
            break
    checkpointer._shards.flush()
    stored = len(checkpointer.storage.commits())
    dist.barrier()
    dist.destroy_process_group()
(folder / f"began-{rank}.json").write_text(json.dumps([*began, stored]))
os._exit(0)
"""


def train(folder: Path, with_memory: int) -> tuple[list[list[int]], list[str]]:
    """Return at which steps each rank began, and the commits in storage at the end; and what they
    wrote."""
    outputs = run_two_ranks(SCRIPT, folder, with_memory)
    began = [json.loads((folder / f"began-{rank}.json").read_text()) for rank in range(2)]
    return began, outputs


def test_all_save_to_storage_where_one_has_no_shared_memory(tmp_path: Path) -> None:
    began, outputs = train(tmp_path, 1)
    assert began == [[0, 2, 3], [0, 2, 3]]
    assert "rank 1 has no shared memory" in outputs[0]


def test_one_that_has_none_any_more_gets_its_part_from_the_others_memory(tmp_path: Path) -> None:
    began, outputs = train(tmp_path, 2)
    assert began == [[0, 2, 2], [0, 2, 2]], outputs  # storage has the second world's alone
