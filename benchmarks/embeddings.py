"""Measures ElasticEmbedding beside torch's EmbeddingBag, and what a change of its holders costs.

    python -m benchmarks.embeddings [--rows 1000000] [--width 32] [--batches 20] \\
      [--only updates|skew|holders|move|servers|saves] [--backup]

Forward, backward and update of batches of 65,536 random ids in bags of 16, one thread, in rows (ids
of a batch) a second of CPU time, each kind in turn for a batch, so that other load meets all alike.
With fbgemm (torch 2.14, fbgemm-gpu-cpu 1.9) its CPU kernel, too, and with TorchRec (1.9) a plain
EmbeddingBagCollection, in one process; they don't load beside newer torch, so in an environment of
their own, with --only updates:

    uv venv build/peers && . build/peers/bin/activate
    uv pip install -e trainer torch==2.14.1 torchrec==1.9.2 fbgemm-gpu-cpu==1.9.0

Then how many more rows the busiest rank is asked for than the mean one, on impressions of
examples/clicks.py. Then the table is held by two, then three processes, then two again, over gloo
on loopback: how long ranks stand still, and how many rows move beside the fewest that could; with
--backup a second rank has a copy of each row. Then a parameter server gives half of the table to
another in this process, without a network between, while it is asked for rows: how long buckets are
frozen, and the longest that a request of any bucket waits, and how many rows are sent beside the
fewest, while pushes of Zipf's frequencies change them. Last, pulls and pushes of one and two
servers beside a static one, and how long they take while a server's rows are saved and exported
(served_embeddings.py).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.recovery import NOTHING
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.embeddings.row_optimizer import Adagrad, RowwiseAdagrad
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.embeddings.table import Table, TableSettings
from elastic_trainer.parameter_server.holder import Gradients, Holder
from elastic_trainer.parameter_server.member import Member
from elastic_trainer.parameter_server.moving import Order, give
from elastic_trainer.parameter_server.server import ParameterServer
from elastic_trainer.parameter_server.share import Share
from elastic_trainer.parameter_server.wire import write_settings
from elastic_trainer.parameter_server.writer import Writer
from elastic_trainer.proto import parameter_server_pb2 as messages
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.storage import Storage

from benchmarks.served_embeddings import measure_saves, measure_servers

IDS, BAG = 65_536, 16
IMPRESSIONS, CLICKS = 61_440, 512
"""Impressions in Criteo's shape, and how many of them a rank's batch has."""
RATE = 0.01
FILLED = (1, 1)
"""The state in which each id has its row."""
Step = Callable[[torch.Tensor], object]
T = TypeVar("T")


def fill(table: Table, ids: np.ndarray) -> None:
    """Give each id a row."""
    for part in np.array_split(ids, max(1, len(ids) // 100_000)):
        nothing = torch.zeros(len(part), table.settings.width)
        table.update(part, np.ones(len(part), dtype=np.int64), nothing, RATE)


def steps(rows: int, width: int) -> dict[str, Step]:
    """Return what trains on a batch, by name."""
    offsets = torch.arange(0, IDS, BAG)
    bag = torch.nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
    optimizer = torch.optim.Adagrad(bag.parameters(), lr=RATE)

    def torch_step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        bag(ids, offsets).sum().backward()
        optimizer.step()

    found: dict[str, Step] = {"EmbeddingBag(sparse), Adagrad": torch_step}
    for kind in (Adagrad(lr=RATE), RowwiseAdagrad(lr=RATE)):
        embedding = ElasticEmbedding("table", width, optimizer=kind)
        tables = SplitTables([embedding])
        fill(embedding.table, np.arange(rows, dtype=np.int64))

        def own_step(
            ids: torch.Tensor, embedding: Any = embedding, tables: SplitTables = tables
        ) -> None:
            embedding(ids, offsets).sum().backward()
            tables.step()

        name = f"ElasticEmbedding, {type(kind).__name__}"
        found[name] = own_step
        print(f"{name}: {embedding.table.nbytes / rows:.0f} bytes a row")
    print(f"EmbeddingBag, Adagrad: {8 * width} bytes a row, of ids counted beforehand")
    with_fbgemm(found, rows, width, offsets)
    return found


def with_fbgemm(found: dict[str, Step], rows: int, width: int, offsets: torch.Tensor) -> None:
    """Add fbgemm's CPU kernel where it is installed."""
    try:
        importlib.import_module("fbgemm_gpu")
    except ImportError:
        return
    tbe: Any = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    host, cpu = tbe.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU
    kernel = tbe.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, host, cpu)],
        optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=RATE,
    )
    ends = torch.cat([offsets, torch.tensor([IDS])])
    found["fbgemm's kernel, RowwiseAdagrad"] = lambda ids: kernel(ids, ends).sum().backward()
    with_torchrec(found, rows, width)


def with_torchrec(found: dict[str, Step], rows: int, width: int) -> None:
    """Add TorchRec's EmbeddingBagCollection, sharded over this process alone, where that is
    installed."""
    try:
        torchrec: Any = importlib.import_module("torchrec")
    except ImportError:
        return
    sharder_of = importlib.import_module("torchrec.distributed.embeddingbag")
    planner_of = importlib.import_module("torchrec.distributed.planner")
    parallel_of = importlib.import_module("torchrec.distributed.model_parallel")
    environment_of = importlib.import_module("torchrec.distributed.types")
    tbe: Any = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    file = os.path.join(tempfile.mkdtemp(), "group")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    group = dist.GroupMember.WORLD
    table = torchrec.EmbeddingBagConfig(
        name="table", embedding_dim=width, num_embeddings=rows, feature_names=["ids"]
    )
    collection = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=[table])
    optimizer = {"optimizer": tbe.OptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": RATE}
    sharders = [sharder_of.EmbeddingBagCollectionSharder(fused_params=optimizer)]
    topology = planner_of.Topology(world_size=1, compute_device="cpu")
    planner = planner_of.EmbeddingShardingPlanner(topology=topology)
    model = parallel_of.DistributedModelParallel(
        collection,
        env=environment_of.ShardingEnv.from_process_group(group),
        device=torch.device("cpu"),
        plan=planner.collective_plan(collection, sharders, group),
        sharders=sharders,
    )
    lengths = torch.full((IDS // BAG,), BAG, dtype=torch.int32)

    def step(ids: torch.Tensor) -> None:
        batch = torchrec.KeyedJaggedTensor(keys=["ids"], values=ids, lengths=lengths)
        model(batch).values().sum().backward()

    found["TorchRec, RowwiseAdagrad"] = step


def measure_updates(rows: int, width: int, batches: int) -> None:
    kinds = steps(rows, width)
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(batches + 2):
        ids = torch.randint(0, rows, (IDS,), generator=generator)
        for name, step in kinds.items():
            began = time.process_time()
            step(ids)
            seconds[name].append(time.process_time() - began)
    first = median(next(iter(seconds.values()))[2:])
    for name, taken in seconds.items():
        typical = median(taken[2:])
        print(f"{name}: {IDS / typical / 1e6:.2f} M rows/s a core, {first / typical:.2f} times")


def measure_skew() -> None:
    """Print how much busier than the mean the busiest rank is where some ids are hot, by the rows
    that ranks ask one another for, each once a step, and by the ids of their samples."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    impressions, _ = importlib.import_module("clicks").generate(IMPRESSIONS)
    zipf = np.random.default_rng(0).zipf(1.3, IMPRESSIONS) * 2_654_435_761
    for what, samples in (
        ("impressions", impressions),
        ("ids of Zipf's frequencies, exponent 1.3", torch.from_numpy(zipf)),
    ):
        for world in (2, 4, 8):
            owners = OwnerMap.even(0, world)
            asked, named = np.zeros(world), np.zeros(world)
            for batch in samples.split(CLICKS):  # one rank's
                ids, seen = np.unique(batch.numpy(), return_counts=True)
                owner = owners.of(buckets(ids))
                asked += np.bincount(owner, minlength=world)
                named += np.bincount(owner, seen, minlength=world)
            print(
                f"busiest of {world} ranks, in means: {asked.max() / asked.mean():.2f} of rows "
                f"asked for, {named.max() / named.mean():.2f} of ids in samples ({IMPRESSIONS:,} "
                f"{what}, batches of {CLICKS})"
            )


def hold(
    rank: int, file: str, rows: int, width: int, rounds: tuple[int, ...], backup: bool
) -> None:
    """Be one of the processes that hold the table; world sizes follow one another."""
    torch.set_num_threads(1)
    embedding = ElasticEmbedding("table", width, optimizer=Adagrad(lr=RATE), backup=backup)
    tables = SplitTables([embedding])
    ids = np.arange(rows, dtype=np.int64)
    before: OwnerMap | None = None
    for number, world in enumerate(rounds):
        previous = rounds[number - 1] if number else world
        if rank >= max(world, previous):
            continue
        dist.init_process_group(
            "gloo",
            init_method=f"file://{file}-{number}",
            rank=rank,
            world_size=max(world, previous),
        )
        pauses: list[float] = []
        works: list[float] = []

        def move(part: Callable[[], T], pauses: Any = pauses, works: Any = works) -> T:
            """Move a part between two steps, for which there is time here."""
            dist.barrier()
            began, worked = time.perf_counter(), time.process_time()
            found = part()
            pauses.append(time.perf_counter() - began)
            works.append(time.process_time() - worked)
            return found

        state = FILLED if number else NOTHING

        def begin(state: Any = state, previous: int = previous, number: int = number) -> None:
            tables.meet(ProcessGroup.current(), state if rank < previous else NOTHING)
            tables.level(state, number, Storage(file))
            dist.barrier()

        move(begin)
        while tables.moving:
            move(tables.move_on)
        if world < previous:
            leaving = [one >= world for one in range(previous)]
            while not move(partial(tables.hand_over, leaving)):
                pass
        every = tables._group.gather(works) if number else []
        if not number:
            fill(embedding.table, ids[embedding.owners.of(buckets(ids)) == rank])
            if tables._backup is not None:
                kept = embedding.owners.kept_by(rank)
                fill(tables._backup.copies[0], ids[np.isin(buckets(ids), kept)])
            tables.push(FILLED)
            tables.apply()
        elif rank == 0 and before is not None:
            report(before, embedding.owners, ids, previous, world, pauses, every)
        before = embedding.owners
        dist.destroy_process_group()


def report(
    before: OwnerMap,
    after: OwnerMap,
    ids: np.ndarray,
    n: int,
    m: int,
    pauses: list[float],
    works: list[list[float]],
) -> None:
    place = buckets(ids)
    moved = np.mean(before.of(place) != after.of(place))
    fewest = 1 - min(n, m) / max(n, m)
    most = max(max(one) for one in works)
    print(
        f"{n} to {m} holders: {sum(pauses):.2f} s of standing still in {len(pauses)} parts, the "
        f"longest {1e3 * max(pauses):.0f} ms ({1e3 * most:.0f} ms of one's CPU time), "
        f"{sum(map(sum, works)):.2f} s of CPU time of all; {moved:.1%} of {len(ids):,} rows moved "
        f"(fewest {fewest:.1%})",
        flush=True,
    )


class InProcess:
    """A stub of a server in this process, which counts the rows it is sent."""

    def __init__(self, server: ParameterServer) -> None:
        self._answers = server.answers
        self.rows = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float | None = None) -> Any:
            await asyncio.sleep(0)  # as a connection has others take their turn
            if name == "Receive":
                self.rows += len(request.ids) // 8 + sum(sum(one.counts) for one in request.whole)
            return await getattr(self._answers, name)(request, None)

        return call


async def measure_move(rows: int, width: int) -> None:
    """Have a server give half of its buckets away."""
    gives, takes = (ParameterServer(f"{one}:1", "first", "") for one in "ab")
    source, target = gives.member.share.holder, takes.member.share.holder
    table = source.add_table(write_settings(TableSettings("table", width, Adagrad(lr=RATE))))
    fill(table, np.arange(rows, dtype=np.int64))
    source.held[:] = True
    waits, holds, frozen, work, asked = [0.0], [0.0], [0.0], [0.0], True

    async def ask() -> None:
        """Ask all the time, as requests come; count what they wait, and how long others are put
        off."""
        since, worked = 0.0, 0.0
        while asked:
            began, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(0)
            ended = time.perf_counter()
            waits.append(ended - began)
            holds.append(time.process_time() - used)
            if source.frozen.any():
                if not since:
                    since, worked = began, used
            elif since:
                frozen.append(ended - since)
                work.append(time.process_time() - worked)
                since = 0.0

    asking = asyncio.get_running_loop().create_task(ask())
    given = np.arange(0, BUCKETS, 2)
    target_stub = InProcess(takes)
    fewest = len(table.ids_in(given))
    draw = np.random.default_rng(0)
    pushed = 0

    async def push() -> None:
        """Push like a worker whose ids have Zipf's frequencies."""
        nonlocal pushed
        source.clocks.open("w", 0, 0.0)
        while asked:
            ids = np.unique((rows ** draw.random(8_192)).astype(np.int64) % rows)
            ids = ids[~source.frozen[buckets(ids)] & source.held[buckets(ids)]]
            gradients = torch.ones(len(ids), width)
            part = Gradients("table", ids, np.ones(len(ids), dtype=np.int64), gradients, RATE)
            pushed += 1
            source.push("w", pushed, [part], 0.0)
            for _ in range(8):
                await asyncio.sleep(0)

    pushing = asyncio.get_running_loop().create_task(push())
    for _ in range(500):
        await asyncio.sleep(0)
    before = pushed
    began, used = time.perf_counter(), time.process_time()
    order = Order(given, gives.member.life, takes.member.life, target_stub, "e", 1, lambda: False)
    assert await give(gives.member.share, order)
    whole, work_whole = time.perf_counter() - began, time.process_time() - used
    during = pushed - before
    asked = False
    await asking
    await pushing
    print(
        f"a server gives {len(given)} buckets with {len(target.tables['table']):,} rows to "
        f"another: {whole:.2f} s in all ({work_whole:.2f} s of CPU time, with the pushes), "
        f"frozen for {1e3 * max(frozen):.0f} ms ({1e3 * max(work):.0f} ms of CPU time), longest "
        f"wait of a request {1e3 * max(waits):.0f} ms ({1e3 * max(holds):.0f} ms of CPU time); "
        f"{target_stub.rows:,} rows sent (fewest "
        f"{fewest:,}) during {during} pushes",
        flush=True,
    )


async def measure_writes(rows: int, width: int) -> None:
    """Have a server in this process save and export all rows, while others ask for their turn."""
    holder = Holder()
    table = holder.add_table(write_settings(TableSettings("table", width, Adagrad(lr=RATE))))
    fill(table, np.arange(rows, dtype=np.int64))
    holder.held[:] = True
    waits, works, own = [0.0], [0.0], [0.0]

    async def ask() -> None:
        while True:
            began, used, mine = time.perf_counter(), time.process_time(), time.thread_time()
            await asyncio.sleep(0)
            waits.append(time.perf_counter() - began)
            works.append(time.process_time() - used)
            own.append(time.thread_time() - mine)

    with tempfile.TemporaryDirectory() as folder:
        save = messages.SaveRequest(place=folder, save="save")
        export = messages.SaveRequest(place=folder, export=folder, number=1, base=True)
        for what, request in (("save", save), ("export", export)):
            asking = asyncio.get_running_loop().create_task(ask())
            began = time.perf_counter()
            await Writer(Member("a:1")).write(request, Share(holder), holder.held.copy())
            took = time.perf_counter() - began
            asking.cancel()
            print(
                f"{what} of {rows:,} rows: {took:.1f} s, in which who asks waits for "
                f"{1e3 * max(own):.1f} ms of the server's CPU time at most, {1e3 * max(works):.0f} "
                f"ms with that of the thread that writes; {1e3 * max(waits):.0f} ms in all",
                flush=True,
            )
            for found in (waits, works, own):
                found[:] = [0.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batches", type=int, default=20)
    parts = ("updates", "skew", "holders", "move", "servers", "saves")
    parser.add_argument("--only", choices=parts, help="one part (default: all)")
    parser.add_argument("--backup", action="store_true", help="holders keep each row twice")
    given = parser.parse_args()
    chosen = (given.only,) if given.only else parts
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    if "updates" in chosen:
        measure_updates(given.rows, given.width, given.batches)
    if "skew" in chosen:
        measure_skew()
    if "holders" in chosen:
        with tempfile.TemporaryDirectory() as folder:
            rounds = (2, 3, 2)
            file = os.path.join(folder, "group")
            torch.multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
                hold, (file, given.rows, given.width, rounds, given.backup), nprocs=max(rounds)
            )
    if "move" in chosen:
        asyncio.run(measure_move(given.rows, given.width))
    for servers in (1, 2) if "servers" in chosen else ():
        measure_servers(min(given.rows, 1_000_000), given.width, given.batches, IDS, servers)
    if "saves" in chosen:
        asyncio.run(measure_writes(given.rows, given.width))
        measure_saves(given.rows, given.width)


if __name__ == "__main__":
    main()
