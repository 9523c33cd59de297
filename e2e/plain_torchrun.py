"""A script of plain torch, for torchrun's own rendezvous: adds up together, and saves each step."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
log, stop = folder / "steps.log", folder / "stop"
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
# What was done so far, and whether to stop, as rank 0 sees it.
state = torch.zeros(2, dtype=torch.int64)
if rank == 0 and log.exists():
    state[0] = int(log.read_text().splitlines()[-1].split()[0])
dist.broadcast(state, 0)
while not state[1]:
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == world
    state[0] += 1
    if rank == 0:
        state[1] = int(stop.exists())
        with log.open("a") as file:
            file.write(f"{int(state[0])} {world} {time.time():.3f}\n")
    dist.broadcast(state, 0)
    time.sleep(0.05)
dist.destroy_process_group()
