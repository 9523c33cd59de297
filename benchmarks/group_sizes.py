"""Times to connect a round's ranks, by their number: `python -m benchmarks.group_sizes [--json]`.

`mesh` connects each rank to each other, as gloo does and rounds of few ranks do; `neighbours`
those that collectives use (trainer/elastic_trainer/ranks/neighbours.py). Shown are, means over the
rounds but the first: CPU seconds of the process that serves the round's store, CPU seconds of
another rank, a rank's connections, and the seconds until all are in the group, which on few cores
is the sum of all ranks' CPU. Ranks are processes on loopback.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from elastic_trainer.ranks.connection import _sockets
from elastic_trainer.ranks.neighbours import connecting_when_used, meet
from elastic_trainer.ranks.reverse_lookup import stop_reverse_lookups
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

PATIENCE = timedelta(seconds=300)
"""Patience for all ranks to start, and to find one another."""
ROUNDS = 3


def connect(mesh: bool, store: Any, rank: int, world: int) -> None:
    if mesh:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
        return
    with connecting_when_used():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
    meet(rank, world)


def be(rank: int, world: int, mesh: bool, port: int, told: Any) -> None:
    torch.set_num_threads(1)
    stop_reverse_lookups()
    host = rank == 0
    store = TCPStore("127.0.0.1", port, world, is_master=host, timeout=PATIENCE)
    seen = []
    for number in range(ROUNDS):
        before = len(_sockets())
        store.add(f"ready-{number}", 1)
        while store.add(f"ready-{number}", 0) < world:
            time.sleep(0.05)
        began, spent = time.monotonic(), time.process_time()
        connect(mesh, PrefixStore(f"round-{number}", store), rank, world)
        seen.append((time.process_time() - spent, time.monotonic() - began))
        sockets = len(_sockets()) - before
        dist.barrier()
        dist.destroy_process_group()
    cpu, wall = (statistics.mean(column) for column in zip(*seen[1:], strict=True))
    told.put((rank, cpu, wall, sockets))
    store.add("end", 1)
    while host and store.add("end", 0) < world:
        time.sleep(0.05)


def measure(world: int, mesh: bool, port: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    ranks = [
        context.Process(target=be, args=(rank, world, mesh, port, told), daemon=True)
        for rank in range(world)
    ]
    for one in ranks:
        one.start()
    found = {}
    for _ in ranks:
        rank, *rest = told.get(timeout=3 * PATIENCE.total_seconds())
        found[rank] = rest
    for one in ranks:
        one.join(PATIENCE.total_seconds())
    others = [found[rank] for rank in range(1, world)]
    return {
        "ranks": world,
        "connects": "mesh" if mesh else "neighbours",
        "host_cpu_seconds": found[0][0],
        "rank_cpu_seconds": statistics.mean(cpu for cpu, _, _ in others),
        "connections": statistics.median(sockets for _, _, sockets in others),
        "seconds": max(wall for _, wall, _ in found.values()),
    }


def main() -> int:
    from benchmarks.endpoint import free_endpoint

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.group_sizes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    rows = [measure(n, mesh, free_endpoint()) for n in given.ranks for mesh in (True, False)]
    if given.json:
        print(json.dumps(rows, indent=2))
        return 0
    print("ranks  connects     host's CPU  a rank's CPU  connections  all in the group")
    for row in rows:
        print(
            f"{row['ranks']:5d}  {row['connects']:10s} {row['host_cpu_seconds']:10.3f} s "
            f"{row['rank_cpu_seconds'] * 1000:10.1f} ms  {row['connections']:11.0f} "
            f"{row['seconds']:15.2f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
