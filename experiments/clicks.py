"""E7, asynchronous, on impressions of Criteo's shape: DeepFM on parameter servers that come and go.

    python -m experiments.clicks [--quick] [--staleness N]

Each run is real processes on loopback: a coordinator that hands out leases, parameter servers,
workers that each push gradients as they have them, and the ledger's owner, which evaluates. Data,
models and AUC are those of examples/clicks.py. Processes are forked, so that none imports torch.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch
from elastic_trainer import ElasticEmbedding, Ledger, ServedTables, ShardClient
from elastic_trainer.coordinator.__main__ import main as coordinate
from elastic_trainer.data.audit import verify
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.parameter_server.__main__ import main as serve
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.endpoint import free_endpoint
from experiments.table import markdown

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
EXAMPLE: Any = importlib.import_module("clicks")
FORK: Any = multiprocessing.get_context("fork")
PATIENCE_SECONDS = 300.0
TARGET = 0.0005
"""Mean gap of ElasticDL's published curves, by their raw data."""


@dataclass(frozen=True)
class Plan:
    workers: tuple[int, ...]
    """At first, and from each of as many even parts of the samples on."""
    servers: tuple[int, ...]
    seed: int = 0
    samples: int = 60_000
    held_out: int = 20_000
    batch: int = 128
    points: int = 12
    """Evaluations."""
    rate: float = 0.02
    staleness: int | None = None

    @property
    def label(self) -> str:
        return f"{arrows(self.workers)} workers, {arrows(self.servers)} servers, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    curve: tuple[float, ...]
    """AUC of the held-out impressions, at even numbers of samples."""
    wrong: int
    """Samples that were lost, or are in the ledger twice, by its audit."""
    twice: int
    """Samples whose gradient was pushed, and whose worker was killed before the ledger knew."""

    @property
    def auc(self) -> float:
        return self.curve[-1]


def arrows(numbers: tuple[int, ...]) -> str:
    return "→".join(map(str, numbers))


def elastic_table(name: str, width: int) -> ElasticEmbedding:
    rate = Adagrad(lr=Plan.rate)
    return ElasticEmbedding(name, width, optimizer=rate, mode="sequence", bound=EXAMPLE.BOUND)


EXAMPLE.table = elastic_table


class Run:
    """The processes of one training."""

    def __init__(self, plan: Plan, ids: torch.Tensor, clicked: torch.Tensor, folder: Path) -> None:
        self._plan, self._ids, self._clicked, self._folder = plan, ids, clicked, folder
        self._endpoint = f"127.0.0.1:{free_endpoint()}"
        self._done = FORK.Value("q", 0)
        self._hold = FORK.Event()
        self._ready, self._pushed = FORK.Value("q", 0), FORK.Value("q", 0)
        self._servers: list[tuple[str, Any]] = []
        self._workers: list[Any] = []
        self._all: list[Any] = []

    def run(self) -> Outcome:
        plan = self._plan
        try:
            self._start(lambda: coordinate(["--port", self._endpoint.rpartition(":")[2]]))
            self._serve(plan.servers[0])
            owner = self._start(self._own)
            self._wait("the owner", (self._folder / "owner").exists)
            stages = sorted(
                [(plan.samples * n // len(plan.workers), 0, m) for n, m in enumerate(plan.workers)]
                + [
                    (plan.samples * n // len(plan.servers), 1, m)
                    for n, m in enumerate(plan.servers)
                ]
            )
            for samples, kind, number in stages:
                self._wait(f"{samples} samples", lambda at=samples: self._done.value >= at)
                (self._serve if kind else self._work)(number)
            owner.join(PATIENCE_SECONDS)
            if owner.exitcode != 0:
                raise RuntimeError(f"{plan.label}: the owner ended with {owner.exitcode}")
        finally:
            for one in self._all:
                if one.is_alive():
                    one.kill()
                one.join()
        curve = tuple(map(float, (self._folder / "curve").read_text().split()))
        audit = verify(self._folder / "audit", plan.samples, 1)
        lost = audit.lost + audit.repeated + audit.unexpected
        return Outcome(curve, lost, self._pushed.value - plan.samples)

    def _serve(self, number: int) -> None:
        """Have so many servers, each with its share."""
        while len(self._servers) < number:
            address = f"127.0.0.1:{free_endpoint()}"
            joins = ["--join", self._servers[0][0]] if self._servers else []
            arguments = ["--port", address.rpartition(":")[2], *joins]
            process = self._start(lambda given=arguments: sys.exit(serve(given)))
            self._servers.append((address, process))
        for _, process in self._servers[number:]:
            process.terminate()
        for _, process in self._servers[number:]:
            process.join(PATIENCE_SECONDS)
            if process.exitcode != 0:
                raise RuntimeError(f"a server that left ended with {process.exitcode}")
        del self._servers[number:]
        settle = self._start(lambda: self._settle(number))
        settle.join(PATIENCE_SECONDS)
        if settle.exitcode != 0:
            raise RuntimeError(f"{self._plan.label}: rows didn't move to {number} servers")

    def _settle(self, number: int) -> None:
        tables = self._tables(EXAMPLE.DeepFM())
        while True:
            tables._until_done(tables._find_owners)
            owners = tables._owner_of
            shares = np.bincount(owners[owners >= 0])
            if (shares > 0).sum() == number and shares.sum() == 1024:
                return
            time.sleep(0.02)

    def _work(self, number: int) -> None:
        """Have so many workers; those that are too many are killed."""
        self._hold.set()
        for one in self._workers[number:]:
            one.kill()
        del self._workers[number:]
        started = self._ready.value + number - len(self._workers)
        while len(self._workers) < number:
            self._workers.append(self._start(self._train))
        self._wait("the newcomers", lambda: self._ready.value >= started)
        self._hold.clear()

    def _start(self, target: Callable[[], object]) -> Any:
        process = FORK.Process(target=target, daemon=True)
        process.start()
        self._all.append(process)
        return process

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._plan.label}: waited in vain for {what}")
            time.sleep(0.005)

    # ---- in processes of their own

    def _tables(self, net: torch.nn.Module) -> ServedTables:
        modules = [one for one in net.modules() if isinstance(one, ElasticEmbedding)]
        return ServedTables(
            modules,
            self._servers[0][0],
            dense=net,
            dense_optimizer=Adagrad(lr=self._plan.rate),
            staleness=self._plan.staleness,
        )

    def _train(self) -> None:
        torch.manual_seed(self._plan.seed)
        net, plan = EXAMPLE.DeepFM(), self._plan
        shards = ShardClient(
            self._endpoint, samples=plan.samples, epochs=1, size=plan.batch, seed=plan.seed
        )
        with shards, self._tables(net), Client(str(self._folder / "owner"), "AF_UNIX") as owner:
            tables = net.rows.rows.tables
            with torch.no_grad():
                net(self._ids[:1])
            with self._ready.get_lock():
                self._ready.value += 1
            while leases := shards.fetch(1):
                for lease in leases:
                    which = torch.as_tensor(shards.indices(lease))
                    loss = binary_cross_entropy_with_logits(
                        net(self._ids[which]), self._clicked[which]
                    )
                    loss.backward()
                    tables.step()
                    with self._pushed.get_lock():
                        self._pushed.value += len(which)
                    owner.send(lease)
                    owner.recv()

    def _own(self) -> None:
        torch.manual_seed(self._plan.seed)
        net, plan = EXAMPLE.DeepFM().eval(), self._plan
        later = slice(plan.samples, plan.samples + plan.held_out)
        ids, clicked = self._ids[later], self._clicked[later]
        ledger = Ledger(
            samples=plan.samples,
            epochs=1,
            size=plan.batch,
            seed=plan.seed,
            audit=self._folder / "audit",
        )
        one_at_a_time, curve = Lock(), []

        def added(lease: Any) -> None:
            while self._hold.is_set():
                time.sleep(0.002)
            with one_at_a_time:
                if ledger.add(lease):
                    # Else all that a worker did since would be handed out again if it were killed.
                    shards.tell()
                    self._done.value = len(ledger.consumed)
                    if self._done.value * plan.points // plan.samples > len(curve):
                        with torch.no_grad():
                            curve.append(EXAMPLE.auc(net(ids), clicked))

        def attend(worker: Any) -> None:
            try:
                while True:
                    added(worker.recv())
                    worker.send(True)
            except (EOFError, OSError):
                return

        with (
            ShardClient(self._endpoint, ledger=ledger) as shards,
            self._tables(net),
            Listener(str(self._folder / "owner"), "AF_UNIX") as listener,
        ):
            shards.tell()

            def accept() -> None:
                while True:
                    Thread(target=attend, args=(listener.accept(),), daemon=True).start()

            Thread(target=accept, daemon=True).start()
            while not ledger.complete:
                time.sleep(0.005)
            with one_at_a_time:
                (self._folder / "curve").write_text(" ".join(map(str, curve)))
                shards.commit(1)
        os._exit(0)


def run(plan: Plan, ids: torch.Tensor, clicked: torch.Tensor) -> Outcome:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = Run(plan, ids, clicked, Path(folder)).run()
    print(
        f"{plan.label}: AUC {found.auc:.5f}, {time.perf_counter() - begun:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return found


def gap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def mean(found: list[Outcome]) -> tuple[float, ...]:
    return tuple(map(statistics.fmean, zip(*(one.curve for one in found), strict=True)))


Kind = tuple[tuple[int, ...], tuple[int, ...], str]
"""Workers, servers, and a remark."""
KINDS: tuple[Kind, ...] = (
    ((2,), (2,), ""),
    ((2,), (2,), " again"),
    ((1,), (2,), ""),
    ((4,), (2,), ""),
    ((8,), (2,), ""),
    ((4,), (2, 4, 3), ""),
    ((2, 4, 2), (2, 4, 3), ""),
)


def report(found: dict[Kind, list[Outcome]]) -> str:
    """Compare each kind of run with the first, seed by seed and by the curves' means."""
    first = next(iter(found.values()))
    spread = statistics.stdev(one.auc for one in first)
    rows = []
    for (workers, servers, remark), several in found.items():
        pairs = list(zip(several, first, strict=True))
        rows.append(
            [
                arrows(workers) + remark,
                arrows(servers),
                f"{statistics.fmean(one.auc for one in several):.5f}",
                f"{statistics.fmean(one.auc - other.auc for one, other in pairs):+.5f}",
                f"{statistics.fmean(gap(one.curve, other.curve) for one, other in pairs):.5f}",
                f"{gap(mean(several), mean(first)):.5f}",
                f"{sum(one.wrong for one in several)}",
                f"{sum(one.twice for one in several)}",
            ]
        )
    head = ["workers", "servers", "AUC", "to the first", "mean gap, seed by seed"]
    head += ["of the means over seeds", "samples lost", "pushed twice"]
    table = markdown(head, rows)
    return f"{table}\n- spread of {len(first)} seeds (standard deviation): {spread:.5f}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.clicks", description="See above.")
    parser.add_argument("--quick", action="store_true", help="a seed, few samples")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--staleness", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = {"samples": 6_000, "held_out": 2_000, "points": 3} if given.quick else {}
    one = Plan((1,), (2,), **size)
    found: dict[Kind, list[Outcome]] = {}
    data = EXAMPLE.generate(one.samples + one.held_out)
    for seed in range(1 if given.quick else given.seeds):
        for kind in KINDS:
            plan = Plan(*kind[:2], seed=seed, staleness=given.staleness, **size)
            found.setdefault(kind, []).append(run(plan, *data))
        if seed:
            print(report(found), flush=True)


if __name__ == "__main__":
    main()
