"""One asynchronous training as processes of this machine: workers, parameter servers, a coordinator
that hands out leases, and the ledger's owner, which evaluates.

Data, models and AUC are those of examples/clicks.py. Processes are forked, so that none imports
torch.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import numpy as np
import torch
from elastic_trainer import ElasticEmbedding, Ledger, ServedTables, ShardClient
from elastic_trainer.coordinator.__main__ import main as coordinate
from elastic_trainer.data.audit import verify
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.parameter_server.__main__ import main as serve
from elastic_trainer.parameter_server.known_servers import KnownServers
from elastic_trainer.shards.ranges import Ranges
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.endpoint import free_endpoint
from experiments.clicks.turns import Turns

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
EXAMPLE: Any = importlib.import_module("clicks")
FORK: Any = multiprocessing.get_context("fork")
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Plan:
    workers: tuple[int, ...]
    """At first, and from each of as many even parts of the samples on."""
    servers: tuple[int, ...]
    seed: int = 0
    samples: int = 61_440
    held_out: int = 50_000
    batch: int = 128
    points: int = 10
    """Evaluations, each of a whole number of batches."""
    rate: float = 0.02
    warm_up: int = 12_288
    """Samples in whose course the learning rate rises to that, as for any asynchronous training:
    several workers' first gradients are of the same parameters, and Adagrad's first steps large."""
    remark: str = ""
    """Tells runs of an equal plan apart, behind its numbers of workers and servers."""

    @property
    def every(self) -> int:
        """Samples between two evaluations."""
        return self.samples // self.points

    @property
    def label(self) -> str:
        workers, servers = arrows(self.workers), arrows(self.servers)
        return f"{workers} workers, {servers} servers{self.remark}"


@dataclass(frozen=True)
class Outcome:
    curve: tuple[float, ...]
    """AUC of the held-out impressions, at even numbers of samples."""
    parts: tuple[float, ...]
    """The last AUC of each of ten parts of them."""
    wrong: int
    """Samples that were lost, or are in the ledger twice, by its audit."""
    twice: int
    """Samples that were pushed once more, by somebody else: their worker was killed before the
    ledger knew."""
    seconds: float

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
        plan, begun = self._plan, time.monotonic()
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
        curve, parts = json.loads((self._folder / "curve").read_text())
        audit = verify(self._folder / "audit", plan.samples, 1)
        lost = audit.lost + audit.repeated + audit.unexpected
        seconds = time.monotonic() - begun
        return Outcome(tuple(curve), tuple(parts), lost, self._pushed.value - plan.samples, seconds)

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
        """Wait until so many servers hold all buckets."""
        servers = KnownServers(self._servers[0][0], "", PATIENCE_SECONDS, dict, print)
        while True:
            servers.until_done(servers.find_owners)
            owners = servers.owner_of
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
            ended = any((one.exitcode or 0) > 0 for one in self._all)
            if ended or time.monotonic() > deadline:
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
                    rate = plan.rate * min(1.0, lease.stop / max(1, plan.warm_up))
                    net.rows.rows.tables.dense.lr = net.rows.lr = rate
                    loss = binary_cross_entropy_with_logits(
                        net(self._ids[which]), self._clicked[which]
                    )
                    loss.backward()
                    owner.send(lease)
                    if not owner.recv():  # somebody else has pushed it
                        tables.forget()
                        continue
                    tables.step()
                    with self._pushed.get_lock():
                        self._pushed.value += len(which)
                    owner.send(None)
                    owner.recv()

    def _own(self) -> None:
        """Let workers push, and evaluate the model with exactly as many samples as a point of the
        curve has: a worker that would push beyond it waits with its gradient."""
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
        turn, turns, curve = Condition(), Turns(), list[float]()
        scores = torch.zeros(0)

        def may_push(samples: Ranges) -> bool | None:
            return turns.decide(samples, ledger.consumed, plan.every * (len(curve) + 1))

        def pushed(lease: Any) -> None:
            nonlocal scores
            while self._hold.is_set():
                time.sleep(0.002)
            if not ledger.add(lease):
                return
            # Else all that a worker did since would be handed out again if it were killed.
            shards.tell()
            self._done.value = len(ledger.consumed)
            if self._done.value == plan.every * (len(curve) + 1):
                with torch.no_grad():
                    scores = net(ids)
                curve.append(EXAMPLE.auc(scores, clicked))

        def attend(worker: Any) -> None:
            while True:
                try:
                    lease = worker.recv()
                except (EOFError, OSError):
                    return
                samples = Ranges.of(lease.start, lease.stop)
                with turn:
                    turn.wait_for(lambda of=samples: may_push(of) is not None)
                    granted = bool(may_push(samples))
                    if granted:
                        turns.begin(samples)
                try:
                    worker.send(granted)
                    if not granted:
                        continue
                    worker.recv()
                except (EOFError, OSError):  # killed; somebody else gets that lease
                    lease = None
                with turn:
                    if granted:
                        turns.end(samples)
                    if lease is not None:
                        pushed(lease)
                    turn.notify_all()
                if lease is None:
                    return
                with suppress(OSError):
                    worker.send(True)

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
            with turn:
                parts = [
                    EXAMPLE.auc(*part)
                    for part in zip(scores.chunk(10), clicked.chunk(10), strict=True)
                ]
                (self._folder / "curve").write_text(json.dumps([curve, parts]))
                shards.commit(1)
        os._exit(0)


def run(plan: Plan, ids: torch.Tensor, clicked: torch.Tensor) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        found = Run(plan, ids, clicked, Path(folder)).run()
    print(f"{plan.label}: AUC {found.auc:.5f}, {found.seconds:.0f} s", file=sys.stderr, flush=True)
    return found
