"""Sharded trainings (FSDP2, HSDP) whose nodes are lost with their memory, and come and go, by seed:
no committed step lost, nothing read from storage while memory sufficed, the same bits.

    python -m tests.elastic_trainer.sharded_harness --seeds 100 [--loop] [--unit 2 | --hsdp]

Each seed is a training of 12 steps in several rounds. A round's ranks are processes; a node is a
folder of shared memory with one or two of them. A node is lost at a point that the seed draws: its
ranks are killed, and its folder is removed. With `--loop` the others' processes live on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.convert_frame  # which each rank's first step would else import
from elastic_trainer.agent.held_parts import held_parts
from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.places import choose_places
from elastic_trainer.parent_death import die_with
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.slot import Slot, find_labels
from elastic_trainer.store.storage import Storage
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.sharded_round import (
    POINTS,
    SHOW_STACKS,
    STEPS,
    Loss,
    Round,
    run_rank,
    train_alone,
)

MOST_ROUNDS = 12
ROUND_SECONDS = 120.0
STACKS_SECONDS = 1.0
"""For processes that hang, or wait for one that failed, to write where they are."""
KEPT_STORES = 3
"""Stores kept at once, of rounds with a store of their own."""
LOST_SECONDS = 0.05
"""At most so long after a node's loss the agents of the others end their ranks."""

Identity = tuple[int, int]


class Violation(Exception):
    """Something was lost, read without need, or isn't the same."""


@dataclass(slots=True)
class Counts:
    """Counts of what happened in all seeds."""

    rounds: int = 0
    losses: int = 0
    resizes: int = 0
    restores: int = 0
    from_storage: int = 0
    reads: int = 0


class Store:
    """A process with the TCPStores of rounds, so that this one has no threads as it forks."""

    def __init__(self) -> None:
        self._answers, answers = os.pipe()
        requests, self._requests = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            die_with(parent)
            servers = []
            while os.read(requests, 1):
                servers.append(_serve())
                os.write(answers, str(servers[-1].port).encode())
                del servers[1:-KEPT_STORES]
            os._exit(0)
        os.close(answers)
        os.close(requests)
        self.port = self.fresh()
        """Port of the store that rounds share, each under names of its own."""

    def fresh(self) -> int:
        """Return the port of another one."""
        os.write(self._requests, b"+")
        return int(os.read(self._answers, 16))

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._answers)
        os.close(self._requests)


def _serve() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))


class Training:
    """One seed.

    Args:
        folder: of its own, on shared memory.
        unit: nodes of one rank that a replica is divided among, so that they come and go together;
            1: the seed says what is divided how.
        hsdp: replicas are nodes of two ranks each, whatever the seed says.
        device: of the model, "cpu" or "cuda".
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        store: Store,
        counts: Counts,
        unit: int = 1,
        hsdp: bool = False,
        device: str = "cpu",
    ) -> None:
        self.chance = random.Random(seed)
        self.folder, self.store, self.counts = folder, store, counts
        self.name, self.device = f"{seed}", device
        chance = self.chance
        self.unit = unit
        self.local = 2 if hsdp else chance.choice((1, 1, 2)) if unit == 1 else 1
        hybrid = hsdp or (self.local > 1 and chance.random() < 0.5)
        self.shards = unit if unit > 1 else self.local * hybrid
        self.every = chance.choice((1, 1, 2, 3))
        self.slow = chance.choice((0.0, 0.0, 0.05, 0.3))
        self.fixed = chance.random() < 0.4
        """The world stays as it is: lost nodes are replaced."""
        self.most = 3 if hsdp else 4 if self.local == 1 else 2
        """Nodes."""
        few = (2, 3) if hsdp else (2, 3, 3, 4) if unit == 1 else (unit, 4, 4)
        self.nodes = list(range(chance.choice(few) if hsdp or self.local == 1 else 2))
        self._next_node = len(self.nodes)
        self.events = chance.randint(1, 3)
        self.made: dict[Identity, set[str]] = {}
        """By identity: the digests of that state; one, if all is well."""
        self.safe: Identity = (0, 0)
        """The newest state that the next round may not begin without."""
        self.doubled: Identity = (0, 0)
        """The newest state that is on two nodes, so that the loss of one may not cost it."""
        self.history: list[str] = []

    @property
    def shape(self) -> tuple[int, int, int]:
        return (len(self.nodes), self.local, self.shards)

    def close(self) -> None:
        """End what a violation has left; a round's ranks have all ended."""

    def run(self) -> list[torch.Tensor]:
        """Return the final tensors. Raises Violation."""
        for number in range(1, MOST_ROUNDS + 1):
            round_ = self._draw(number)
            self.history.append(repr(round_))
            self.counts.rounds += 1
            whole = self._whole_in_memory()
            stored = self._stored()
            lost = self._train(round_)
            self._check(round_, whole, stored, lost)
            if lost is None and not round_.fence:
                final: list[torch.Tensor] = torch.load(self.folder / "final")
                return final
            self._change(round_, lost)
        raise Violation(f"not done after {MOST_ROUNDS} rounds")

    def _draw(self, number: int) -> Round:
        chance = self.chance
        plain = Round(
            number,
            tuple(self.nodes),
            self.local,
            self.shards,
            self.every,
            mirror_seconds=self.slow,
            device=self.device,
        )
        if self.events <= 0:
            return plain
        self.events -= 1
        if not self.fixed and chance.random() < 0.5:
            step = self._newest_step() + chance.randint(1, 4)
            if step < STEPS:
                leavers = ()
                units = len(self.nodes) // self.unit
                if units > 1 and chance.random() < 0.6:
                    leavers = tuple(
                        chance.sample(self.nodes, self.unit * chance.randint(1, units - 1))
                    )
                plain = replace(plain, fence=step, leavers=leavers)
                if chance.random() < 0.6:
                    return plain
        point = chance.choice(POINTS)
        hits = (
            chance.randint(0, 6) if point in ("mirroring", "resharding") else chance.randint(0, 4)
        )
        if point == "restored":
            hits = 0
        return replace(plain, loss=Loss(chance.choice(self.nodes), point, hits))

    def _train(self, round_: Round) -> int | None:
        """Return the node that was lost; None if all ended well."""
        prefix = f"{self.name}/{round_.number}"
        ranks: dict[int, int] = {}
        for rank in range(round_.world):
            pid = os.fork()
            if not pid:
                run_rank(self.folder, round_, rank, self.store.port, prefix)
            ranks[pid] = rank
        ended: dict[int, int] = {}
        deadline = time.monotonic() + ROUND_SECONDS
        try:
            while len(ended) < len(ranks) and time.monotonic() < deadline:
                if self._reap(ranks, ended) and any(ended.values()):
                    time.sleep(self.chance.random() * LOST_SECONDS)
                    self._reap(ranks, ended)
                    break
                time.sleep(0.002)
        finally:
            if -signal.SIGKILL not in ended.values() and len(ended) < len(ranks):
                for pid in ranks.keys() - ended.keys():
                    os.kill(pid, SHOW_STACKS)
                time.sleep(STACKS_SECONDS)
            for pid in ranks.keys() - ended.keys():
                os.kill(pid, signal.SIGKILL)
            before = dict(ended)
            while len(ended) < len(ranks):
                self._reap(ranks, ended)
        killed = {ranks[pid] for pid, code in before.items() if code == -signal.SIGKILL}
        if len(before) == len(ranks) and not any(before.values()):
            return None
        if not killed:
            texts = [
                (self.folder / f"log-{round_.number}-{rank}").read_text()[-9000:]
                for rank in range(round_.world)
            ]
            raise Violation(f"ranks ended with {before} in {round_}:\n" + "\n".join(texts))
        node = round_.node_of(killed.pop())
        shutil.rmtree(self.folder / f"node-{node}", ignore_errors=True)
        return node

    @staticmethod
    def _reap(ranks: dict[int, int], ended: dict[int, int]) -> bool:
        new = False
        for pid in ranks.keys() - ended.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended[pid] = os.waitstatus_to_exitcode(status)
                new = True
        return new

    def _change(self, round_: Round, lost: int | None) -> None:
        """The world that comes next."""
        if lost is not None:
            self.counts.losses += 1
            place = self.nodes.index(lost)
            self.nodes.remove(lost)
            if self.fixed or not self.nodes or self.chance.random() < 0.4:
                if self.chance.random() < 0.5:  # others have other ranks then
                    place = self.chance.randint(0, len(self.nodes))
                self.nodes.insert(place, self._new_node())
            else:
                self.counts.resizes += 1
                while 0 < len(self.nodes) < self.unit:  # it waits for others
                    self.nodes.append(self._new_node())
                self._choose_places(len(self.nodes) // self.unit * self.unit)
            return
        for node in round_.leavers:
            self.nodes.remove(node)
            shutil.rmtree(self.folder / f"node-{node}")
        self.counts.resizes += 1
        if (not round_.leavers or self.chance.random() < 0.3) and len(self.nodes) < self.most:
            for _ in range(self.unit):
                self.nodes.insert(self.chance.randint(0, len(self.nodes)), self._new_node())

    def _choose_places(self, size: int) -> None:
        """Leave out who would make no whole unit, and waits beside the job with its parts."""
        folders = [self.folder / f"node-{node}" for node in self.nodes]
        agents = [
            Agent(str(node), place, "", 0.0, parts=held_parts(find_labels(folder)))
            for place, (node, folder) in enumerate(zip(self.nodes, folders, strict=True))
        ]
        self.nodes = [int(agent.agent) for agent in choose_places(agents, size)]

    def _new_node(self) -> int:
        self._next_node += 1
        return self._next_node - 1

    # ---- what must be true

    def _check(self, round_: Round, whole: Identity, stored: Identity, lost: int | None) -> None:
        said = [self._said(round_.number, rank) for rank in range(round_.world)]
        restored = [one for lines in said for one in lines if one["kind"] == "restored"]
        for one in (one for lines in said for one in lines if one["kind"] == "made"):
            self.made.setdefault(tuple(one["identity"]), set()).add(one["digest"])
        for one in restored:
            self.counts.restores += 1
            self.counts.reads += one["reads"]
            self.counts.from_storage += "STORAGE" in one["sources"]
            identity = tuple(one["identity"])
            if identity < max(self.safe, stored):
                raise Violation(f"{self.safe} and {stored} were safe, {identity} was restored")
            if identity < whole:
                raise Violation(f"memory had {whole} whole, {identity} was restored")
            if whole >= stored and one["reads"]:
                raise Violation(f"memory had {whole}, storage {stored}: {one['reads']} files read")
            if identity != (0, 0) and "digest" in one:  # after the last step nobody makes one
                self.made.setdefault(identity, set()).add(one["digest"])
        for identity, digests in self.made.items():
            if len(digests) != 1:
                raise Violation(f"{identity} has {len(digests)} contents")
        kept = [
            {tuple(one["identity"]) for one in lines if one["kind"] == "kept"} for lines in said
        ]
        mirrored = max(set.intersection(*kept), default=(0, 0))
        self.doubled = max(self.doubled, mirrored)
        if lost is None:
            self.safe = max(self.safe, max(map(tuple, self.made)))
            staying = set(round_.nodes) - set(round_.leavers)
            if self._doubles(round_):
                self.doubled = self.safe if len(staying) > 1 else (0, 0)
            if round_.fence and len(staying) > 1:
                for node in staying:
                    self._expect_in_memory(self.doubled, (*round_.leavers, node))
            if round_.fence and (len(staying) > 1 or not self._doubles(round_)):
                self._expect_in_memory(self.safe, round_.leavers)
                if any(one["kind"] == "waited for storage" for lines in said for one in lines):
                    raise Violation("a fence waited for storage")
        elif len(round_.nodes) > 1:
            self.safe = self.doubled
            self._expect_in_memory(self.safe, (lost,))
            self.doubled = (0, 0)
        else:
            self.safe = self.doubled = (0, 0)

    def _doubles(self, round_: Round) -> bool:
        """Return whether a round's fence brings its state to two of the nodes that stay."""
        return True

    def _expect_in_memory(self, identity: Identity, gone: tuple[int, ...]) -> None:
        found = self._whole_in_memory(gone)
        if found < identity:
            raise Violation(f"memory had {identity} on two nodes, without {gone} it has {found}")

    def _said(self, number: int, rank: int) -> list[dict[str, Any]]:
        lines = (self.folder / f"said-{number}-{rank}").read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def _newest_step(self) -> int:
        return max(self._whole_in_memory(), self._stored())[1]

    def _whole_in_memory(self, gone: tuple[int, ...] = ()) -> Identity:
        """Return the newest state of which all parts are in the memory, sealed, of the nodes but
        those that are gone."""
        found: dict[tuple[Identity, int, int], set[int]] = {}
        for node in set(self.nodes) - set(gone):
            for path in (self.folder / f"node-{node}").glob("*-*-*"):
                label = Slot(path).sealed()
                if label is not None:
                    state = label.identity, label.world, label.parts
                    found.setdefault(state, set()).add(label.part)
        whole = [state[0] for state, numbers in found.items() if len(numbers) == state[2]]
        return max(whole, default=(0, 0))

    def _stored(self) -> Identity:
        with contextlib.suppress(StorageError):
            commits = Storage(self.folder / "commits").commits()
            return max((one.identity for one in commits), default=(0, 0))
        return (0, 0)


def trained_alone() -> list[torch.Tensor]:
    """Return what one process without shards ends with."""
    with shared_memory() as folder:
        pid = os.fork()
        if not pid:
            train_alone(folder / "final")
            os._exit(0)
        os.waitpid(pid, 0)
        tensors: list[torch.Tensor] = torch.load(folder / "final")
        return tensors


@contextlib.contextmanager
def shared_memory() -> Iterator[Path]:
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="sharded-harness-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument(
        "--loop", action="store_true", help="ElasticLoop's processes, which live through rounds"
    )
    hybrid = parser.add_mutually_exclusive_group()
    hybrid.add_argument(
        "--unit", type=int, default=1, help="nodes that a replica is divided among (nodeUnit)"
    )
    hybrid.add_argument(
        "--hsdp", action="store_true", help="a replica is a node of two ranks in all seeds"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the model")
    options = parser.parse_args()
    if options.device == "cuda" and not options.loop:
        parser.error("--device cuda goes with --loop, whose processes confirm NCCL's collectives")
    of_all = (options.unit, options.hsdp, options.device)
    kind: type[Training] = Training
    if options.loop:
        from tests.elastic_trainer.sharded_loop_training import LoopTraining

        kind = LoopTraining
    counts, kinds = Counts(), Counter[str]()
    calm: dict[tuple[int, int, int], list[torch.Tensor]] = {}
    largest, equal, failed = 0.0, 0, []
    store = Store()
    began = time.monotonic()
    alone = trained_alone()
    try:
        for seed in range(options.seed, options.seed + options.seeds):
            with shared_memory() as folder:
                training = kind(seed, folder, store, counts, *of_all)
                shape = training.shape
                kinds["HSDP" if training.shards else "FSDP2"] += 1
                try:
                    if shape not in calm:
                        with shared_memory() as other:
                            undisturbed = kind(seed, other, store, Counts(), *of_all)
                            undisturbed.events, undisturbed.name = 0, f"calm-{shape}"
                            with contextlib.closing(undisturbed):
                                calm[shape] = undisturbed.run()
                    with contextlib.closing(training):
                        final = training.run()
                    gap = max(
                        float((one - other).abs().max())
                        for one, other in zip(final, calm[shape], strict=True)
                    )
                    apart = max(
                        float((one - other).abs().max())
                        for one, other in zip(final, alone, strict=True)
                    )
                    if training.fixed and gap:
                        raise Violation(f"the undisturbed run's tensors differ by {gap}")
                    if max(gap, apart) > 1e-9:
                        raise Violation(f"tensors differ by {gap}, by {apart} from one process's")
                    equal += training.fixed
                    largest = max(largest, gap)
                except Violation as violation:
                    failed.append(seed)
                    print(f"seed {seed}: {violation}\n  " + "\n  ".join(training.history))
            print(f"{time.monotonic() - began:7.1f} s: seed {seed} done", flush=True)
    finally:
        store.close()
    print(f"{dict(kinds)}; {counts}")
    print(f"{equal} at constant world equal in all bits; else max |Δ| {largest:.1e}")
    print(f"failed: {failed}" if failed else "nothing lost, nothing read without need")
    return 1 if failed else 0


if __name__ == "__main__":
    # Not this module's own: the loop's trainings raise what the imported one defines.
    from tests.elastic_trainer import sharded_harness

    raise SystemExit(sharded_harness.main())
