"""A small click training whose tables' end can be compared: run under torchrun, or alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from elastic_trainer import Checkpointer, ElasticDataset, ElasticLoop
from elastic_trainer.embeddings import split_tables, table_meter
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.embeddings.row_optimizer import Adagrad, Adam
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import loop as loop_module
from elastic_trainer.parameter_server import client
from elastic_trainer.parameter_server.client import ServedTables
from elastic_trainer.parameter_server.files import read_saves
from elastic_trainer.parameter_server.served_state import ServedState
from elastic_trainer.store.storage import Storage
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

SAMPLES, BATCH = 1200, 24
split_tables.PIECE_BYTES = 4096  # so that even these tables move in several parts
SHORT = timedelta(seconds=1)
"""Patience with a storage, for tests."""


class Clicks(torch.nn.Module):
    """Two tables, one whose rows are admitted late and evicted."""

    def __init__(self) -> None:
        super().__init__()
        double = {"dtype": torch.float64, "seed": 5, "backup": "BACKUP" in os.environ}
        self.items = ElasticEmbedding("items", 4, optimizer=Adagrad(lr=0.1), **double)
        self.users = ElasticEmbedding(
            "users",
            3,
            mode="mean",
            optimizer=Adam(lr=0.02),
            admit_after=2,
            evict_idle=12,
            evict_every=5,
            **double,
        )
        # Beside rows on the CPU; each pod's process has a GPU, if asked for.
        self.device = os.environ.get("TEST_DEVICE", "cpu")
        self.out = torch.nn.Linear(7, 1).double().to(self.device)

    def forward(self, items: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.items(items), self.users(users)], dim=1)
        found: torch.Tensor = self.out(rows.to(self.device)).cpu()
        return found


def clicks(samples: int = SAMPLES, batch_size: int | None = None) -> ElasticDataset:
    generator = torch.Generator().manual_seed(1)
    # Ids that few samples share, all over 62 bits.
    items = torch.randint(0, 900, (SAMPLES, 3), generator=generator) * 5_123_456_789_012_345
    users = torch.randint(0, 400, (SAMPLES, 2), generator=generator) << 50
    target = torch.randn(SAMPLES, 1, generator=generator, dtype=torch.float64)
    return ElasticDataset(
        TensorDataset(items[:samples], users[:samples], target[:samples]),
        batch_size=batch_size,
        global_batch=BATCH,
        epochs=500,
    )


def train(folder: Path, pace: float = 0.0, last_step: int | None = None, every: int = 7) -> None:
    """Train until the folder has a file `enough`, or to a step; write what came of it."""
    torch.manual_seed(0)
    net = Clicks()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    served = None
    if servers := os.environ.get("SERVERS"):
        served = ServedTables([net.items, net.users], servers, patience=60)
    loop = ElasticLoop(
        folder / "commits", model=net, optimizer=optimizer, data=clicks(), every=every
    )
    for items, users, target in loop:
        with loop.step():
            loss = torch.nn.functional.mse_loss(loop.model(items, users), target)
            (loop.weight * loss).backward()
            # One that went back to its beginning has too few rows to show anything.
            enough = torch.tensor(float(loop.steps >= 20 and (folder / "enough").exists()))
            if loop.world > 1:
                torch.distributed.all_reduce(enough)  # so that all ranks stop at one step
        if loop.stepped:
            with (folder / f"steps-{os.getpid()}").open("a") as log:
                log.write(f"{loop.steps}\n")
        time.sleep(pace)
        if loop.stepped and (loop.steps == last_step or (enough and last_step is None)):
            loop.stop()
    if served is not None and loop.rank == 0:
        saved = served.save(folder / "end-tables")
        files = [(f"{saved['place']}/{name}", *one) for name, one in saved["files"].items()]
        for one in (net.items, net.users):
            one.table = read_saves([files]).tables[one.name]
    write_end(folder, net, loop.rank, loop.world, loop.steps)


def write_end(folder: Path, net: Clicks, rank: int, world: int, steps: int) -> None:
    parts = {
        one.name: [part.tolist() for part in one.table.entries().tensors()]
        for one in (net.items, net.users)
    }
    dense = [value.flatten().tolist() for value in net.state_dict().values()]
    written = {"tables": parts, "dense": dense, "steps": steps, "world": world}
    (folder / f"end-{rank}.json").write_text(json.dumps(written))


def train_own_loop(
    folder: Path, pace: float = 0.0, last_step: int | None = None, every: int = 7
) -> None:
    """Do as `train` with Checkpointer, in steps of several batches; an epoch's last step has one
    sample, so that all ranks but one only keep pace there."""
    torch.manual_seed(0)
    net = Clicks()
    model: torch.nn.Module = net
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = clicks(SAMPLES - BATCH + 1, batch_size=5)
    tables = ElasticEmbedding.make_split_state([net.items, net.users])  # SplitTables, or `Dying`
    with Checkpointer(
        folder / "commits", model=model, optimizer=optimizer, data=data, every=every, tables=tables
    ) as checkpointer:
        for items, users, target in data:
            with data.micro_batch(model):
                loss = torch.nn.functional.mse_loss(model(items, users), target)
                (data.weight * loss).backward()
            if not data.last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            tables.step()
            checkpointer.step()
            with (folder / f"steps-{os.getpid()}").open("a") as log:
                log.write(f"{data.steps}\n")
            time.sleep(pace)
            enough = torch.tensor(float(data.steps >= 60 and (folder / "enough").exists()))
            if world > 1:
                torch.distributed.all_reduce(enough)
            if data.steps == last_step or (enough and last_step is None):
                break
    write_end(folder, net, data.group.rank, data.group.world, data.steps)


def die_at(point: str, folder: Path) -> None:
    """Let the first process that comes to this point kill itself there, once in the job."""

    def die() -> None:
        try:
            (folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def stay_until_told(here: str) -> None:
        """Wait until a node was told to leave, as the test says."""
        if not (folder / "told").exists():
            (folder / here).touch()
            while not (folder / "told").exists():
                time.sleep(0.01)

    class Link(WorkerLink):
        def next_place(self, meanwhile: Callable[[], bool] | None = None) -> Place:
            if point == "between" and self.round and os.environ["RANK"] == "0":
                stay_until_told("between")
            return super().next_place(meanwhile)

    class Served(ServedState):
        def apply(self) -> None:
            if point == "apply" and self._identity[1] >= 10 and self._group.rank == 1:
                die()
            super().apply()
            if point == "applied" and self._identity[1] >= 10 and self._group.rank == 1:
                die()

        def save(self, storage: Storage, identity: tuple[int, int]) -> None:
            if point == "save" and identity[1] >= 10 and self._group.rank == 1:
                die()
            super().save(storage, identity)

    client.ServedState = Served  # type: ignore[misc]

    class Dying(SplitTables):
        def push(self, identity: tuple[int, int]) -> None:
            self._at_point("push", identity[1])
            super().push(identity)

        def apply(self) -> None:
            self._at_point("apply", self._identity[1])
            super().apply()

        def save(self, storage: Storage, identity: tuple[int, int]) -> None:
            self._at_point("save", identity[1])
            super().save(storage, identity)

        def _drop(self, given: set[int]) -> None:
            # Before any bucket has come.
            if point == "join" and self._group.rank == 2:
                die()
            super()._drop(given)

        def _move(self, owners: OwnerMap, said: int) -> int:
            most_said = super()._move(owners, said)
            # With some of its buckets here, which nobody else has, and others still to come.
            if self._held and self._left:
                self._between_two_parts()
            return most_said

        def _between_two_parts(self) -> None:
            leaves = any(self._leaving)
            newcomer = self._group.world - 1
            if point == "parts" and not leaves and self._group.rank == newcomer == 2:
                die()
            if point == "giver" and not leaves and self._group.rank == 1 and newcomer == 2:
                die()
            if point == "leaver" and leaves and self._leaving[self._group.rank]:
                die()
            if point == "stayer" and leaves and self._group.rank == 1:
                die()
            if point == "second leaver" and leaves and self._group.rank == 1:
                stay_until_told("has rows")
                time.sleep(0.5)  # all could hear of it

        def _at_point(self, here: str, step: int) -> None:
            if here == point and step >= 10 and self._group.rank == 1:
                die()

    ElasticEmbedding.make_split_state = Dying
    loop_module.WorkerLink = Link  # type: ignore[misc]


if __name__ == "__main__":
    table_meter.WINDOW_SECONDS = 0.5
    if "DIE_AT" in os.environ:
        die_at(os.environ["DIE_AT"], Path(sys.argv[1]))
    begin = train_own_loop if "OWN_LOOP" in os.environ else train
    begin(Path(sys.argv[1]), pace=0.02, every=int(os.environ.get("EVERY", "7")))
