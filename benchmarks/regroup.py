"""Measures how long a new gloo group takes, beside torch's reconfiguration of one that there is.

    python -m benchmarks.regroup [--ranks 3] [--rounds 16]

Medians on loopback, in milliseconds: until the group is there, and of its first all-reduce. That a
group is destroyed isn't counted, as another thread does that in ElasticLoop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

TIMEOUT = timedelta(seconds=60)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ranks", type=int, default=3)
    options.add_argument("--rounds", type=int, default=16)
    given = options.parse_args()
    for way in ("new group", "reconfiguration"):
        made, reduced = measured(way, given.ranks, given.rounds)
        print(f"{way}: {made:.1f} ms, its first all-reduce {reduced:.1f} ms")


def measured(way: str, ranks: int, rounds: int) -> tuple[float, float]:
    """Return the medians, of rank 0."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=TIMEOUT)
    results = context.Queue()
    processes = [
        context.Process(target=run, args=(way, rank, ranks, rounds, store.port, results))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    times: list[tuple[float, float]] = results.get()
    for process in processes:
        process.join()
    return median(made for made, _ in times), median(reduced for _, reduced in times)


def run(way: str, rank: int, ranks: int, rounds: int, port: int, results: Any) -> None:
    """Make a group again and again; the first two aren't counted."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    of_rank: dict[str, Any] = {"rank": rank, "world_size": ranks, "timeout": TIMEOUT}
    if way != "new group":
        dist.init_process_group("gloo", store=store, enable_reconfigure=True, **of_rank)
    times = []
    for number in range(rounds + 2):
        handles: list[str] = []
        if way != "new group":
            store.set(f"{number}/{rank}", dist._get_reconfigure_handle())
            handles = [store.get(f"{number}/{one}").decode() for one in range(ranks)]
        store.add(f"{number}", 1)
        while store.add(f"{number}", 0) < ranks:
            time.sleep(0.0005)
        began = time.perf_counter()
        if way == "new group":
            dist.init_process_group("gloo", store=PrefixStore(f"{number}", store), **of_rank)
        else:
            dist._reconfigure(uuid=number + 1, handles=handles, timeout=TIMEOUT).wait()
        made = time.perf_counter()
        dist.all_reduce(torch.ones(1000))
        times.append((1000 * (made - began), 1000 * (time.perf_counter() - made)))
        if way == "new group":
            dist.destroy_process_group()
    if rank == 0:
        results.put(times[2:])


if __name__ == "__main__":
    main()
