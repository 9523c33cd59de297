"""Ranks' words to one another arrive whole, by few messages where they are short."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

pytestmark = pytest.mark.process

SCRIPT = """
import sys
import torch.distributed as dist
from elastic_trainer.ranks.gathering import FRAME_BYTES, gather_objects

rank, port = (int(argument) for argument in sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, 3, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
group = dist.group.WORLD

def collectives(value):
    before = group._get_sequence_number_for_group()
    said = gather_objects(value(rank))
    assert said == [value(0), value(1), value(2)], said
    return group._get_sequence_number_for_group() - before

short = collectives(lambda rank: {"rank": rank})
# A pickle is a few bytes longer than what it holds: some lengths around a whole frame.
around = [collectives(lambda rank: bytes(FRAME_BYTES - 40 + more)) for more in range(40)]
long = collectives(lambda rank: bytes(1_000_000) if rank else None)
print(short, min(around), max(around), long, flush=True)
dist.destroy_process_group()
"""


def test_what_ranks_say_takes_two_collectives_and_four_where_somebody_says_much() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port) for rank in range(3)]
    try:
        said = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said == [["2", "2", "4", "4"]] * 3
