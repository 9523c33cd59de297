"""Measures what ElasticLoop adds to a step that nothing disturbs, in microseconds.

    python -m benchmarks.loop [--steps 2000]

Seeding and the copy of the buffers are timed apart, beside what the obvious calls cost (a clone of
each buffer, torch.manual_seed). The whole is one process's loop over a tiny model beside a plain
one with the same batches. The least of several tries, as other load only adds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.link.progress import ProgressPage
from elastic_trainer.loop.batch_clock import BatchClock
from elastic_trainer.loop.seed import seed_generators
from elastic_trainer.loop.undo import BufferBackup
from torch.utils.data import TensorDataset

TRIES = 7
BATCH = 4


def microseconds(work: Callable[[], object], times: int) -> float:
    """Return the microseconds of one call."""
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - began)
    return best / times * 1e6


def norms(layers: int) -> torch.nn.Module:
    """Build a model of `layers` batch norms, 3 buffers each."""
    return torch.nn.Sequential(*(torch.nn.BatchNorm2d(256) for _ in range(layers)))


def step(elastic: bool, steps: int) -> float:
    """Microseconds of a whole step of a tiny model."""
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    data = ElasticDataset(
        TensorDataset(torch.ones(BATCH * steps, 4)), batch_size=BATCH, epochs=TRIES
    )
    moments = [time.perf_counter()]

    def train() -> None:
        if elastic:
            for (x,) in loop:
                with loop.step():
                    (loop.weight * loop.model(x).mean()).backward()
                moments.append(time.perf_counter())
        else:
            for (x,) in data:
                optimizer.zero_grad()
                (data.weight * net(x).mean()).backward()
                optimizer.step()
                data.applied()
                moments.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        loop = ElasticLoop(folder, model=net, optimizer=optimizer, data=data, every=10**9)
        train()
    taken = sorted(after - before for before, after in pairwise(moments))
    return taken[len(taken) // 10] * 1e6


def clock(steps: int) -> tuple[float, float, float]:
    """Return what the gradient's hook adds to a step's pass, what else measuring a step of one
    batch takes, and the pass without either: microseconds of CPU."""
    net, clocked, x = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1), torch.ones(BATCH, 4)
    found, page = BatchClock(list(clocked.parameters())), ProgressPage.create()

    def measured() -> None:
        found.begin()
        clocked(x).mean().backward()
        found.end(BATCH)
        found.passed()
        page.worked(*found.take())

    works = (lambda: net(x).mean().backward(), lambda: clocked(x).mean().backward(), measured)
    least = [float("inf")] * len(works)
    for _ in range(steps // 50):  # by turns, as other load comes and goes
        for i, work in enumerate(works):
            began = time.thread_time()
            for _ in range(50):
                work()
            least[i] = min(least[i], (time.thread_time() - began) / 50 * 1e6)
    plain, with_hook, whole = least
    return with_hook - plain, whole - with_hook, plain


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--steps", type=int, default=2000)
    steps = flags.parse_args().steps
    torch.set_num_threads(1)
    once = microseconds(lambda: torch.manual_seed(7), steps)
    print(f"seeding               {microseconds(seed, steps):8.1f}   torch.manual_seed {once:8.1f}")
    for layers in (1, 53, 155):
        module = norms(layers)
        backup = BufferBackup([module])
        clones = microseconds(lambda m=module: [b.clone() for b in m.buffers()], steps // 10)
        saved = microseconds(backup.save, steps // 10)
        print(f"{layers:4} batch norms      {saved:8.1f}   a clone of each   {clones:8.1f}")
    hook, rest, unmeasured = clock(steps)
    print(f"measuring a batch     {rest:8.1f}   and its hook      {hook:8.1f}")
    print(f"                                a pass without    {unmeasured:8.1f}")
    elastic, plain = step(True, steps), step(False, steps)
    print(f"whole step            {elastic:8.1f}   plain loop        {plain:8.1f}")


def seed() -> None:
    seed_generators(7, first=False)


if __name__ == "__main__":
    main()
