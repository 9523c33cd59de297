"""Measures pulls and pushes of parameter servers beside a static one; see benchmarks/embeddings.py.

The static one is what people write first: torch's EmbeddingBag and Adagrad behind gRPC, rows placed
by id modulo the number of servers, which never changes; a push that is sent again counts twice.
Messages have the same rows, ids and gradients. Both are asked by this process in turn, and seconds
are of the whole: asking, messages, and the servers' work.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.parameter_server.client import ServedTables

from embedded_cluster.readiness import free_port

RATE = 0.01
MESSAGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
Ask = Callable[[np.ndarray, np.ndarray], object]


def serve_static(port: int, rows: int, width: int) -> None:
    """Serve pulls and pushes of a table whose size never changes."""
    import grpc

    torch.set_num_threads(1)
    table = torch.nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=RATE)

    def pull(request: bytes, context: object) -> bytes:
        ids = torch.from_numpy(np.frombuffer(request, dtype=np.int64).copy())
        found: bytes = table.weight.detach().index_select(0, ids).numpy().tobytes()
        return found

    def push(request: bytes, context: object) -> bytes:
        count = len(request) // (8 + 4 * width)
        ids = torch.from_numpy(np.frombuffer(request, dtype=np.int64, count=count).copy())
        numbers = np.frombuffer(request, dtype=np.float32, offset=8 * count).copy()
        gradients = torch.from_numpy(numbers).view(count, width)
        table.weight.grad = torch.sparse_coo_tensor(
            ids[None], gradients, table.weight.shape, check_invariants=False
        )
        optimizer.step()
        return b""

    handlers = {
        "Pull": grpc.unary_unary_rpc_method_handler(pull),
        "Push": grpc.unary_unary_rpc_method_handler(push),
    }
    server = grpc.server(ThreadPoolExecutor(1), options=MESSAGE)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Static", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def serve_elastic(arguments: list[str]) -> None:
    from elastic_trainer.parameter_server.__main__ import main

    torch.set_num_threads(1)
    sys.exit(main(arguments))


class Static:
    """A worker of the static servers."""

    def __init__(self, ports: list[int], width: int) -> None:
        import grpc

        self._width = width
        channels = [grpc.insecure_channel(f"127.0.0.1:{one}", options=MESSAGE) for one in ports]
        self._pulls = [one.unary_unary("/Static/Pull") for one in channels]
        self._pushes = [one.unary_unary("/Static/Push") for one in channels]

    def pull(self, ids: np.ndarray) -> torch.Tensor:
        found = torch.empty(len(ids), self._width)
        n = len(self._pulls)
        parts = [np.flatnonzero(ids % n == one) for one in range(n)]
        calls = [
            call.future((ids[part] // n).tobytes(), wait_for_ready=True)
            for call, part in zip(self._pulls, parts, strict=True)
        ]
        for part, call in zip(parts, calls, strict=True):
            rows = np.frombuffer(call.result(), dtype=np.float32).copy()
            found[torch.from_numpy(part)] = torch.from_numpy(rows).view(-1, self._width)
        return found

    def push(self, ids: np.ndarray, gradients: torch.Tensor) -> None:
        n = len(self._pushes)
        calls = []
        for one, call in enumerate(self._pushes):
            part = np.flatnonzero(ids % n == one)
            rows = gradients[torch.from_numpy(part)].numpy().tobytes()
            calls.append(call.future((ids[part] // n).tobytes() + rows))
        for one in calls:
            one.result()


@contextmanager
def processes(targets: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    found = [context.Process(target=target, args=given) for target, given in targets]
    for one in found:
        one.start()
    try:
        yield
    finally:
        for one in found:
            one.kill()
            one.join()


def measure_servers(rows: int, width: int, batches: int, ids_a_batch: int, servers: int) -> None:
    """Print rows a second of pulls and pushes, by turns."""
    ports = [free_port() for _ in range(2 * servers)]
    static, elastic = ports[:servers], ports[servers:]
    join = ["--join", f"127.0.0.1:{elastic[0]}"]
    targets: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (serve_static, (port, -(-rows // servers), width)) for port in static
    ]
    for place, port in enumerate(elastic):
        targets.append((serve_elastic, (["--port", str(port), *(join if place else [])],)))
    with processes(targets):
        peer = Static(static, width)
        embedding = ElasticEmbedding("table", width, optimizer=Adagrad(lr=RATE))
        tables = ServedTables([embedding], f"127.0.0.1:{elastic[0]}")
        settings = embedding.table.settings
        wait_for_shares(tables, servers)
        fill(tables, rows, width)
        draw = np.random.default_rng(0)
        seconds: dict[str, list[float]] = {}

        def timed(name: str, act: Callable[[], object]) -> None:
            began = time.perf_counter()
            act()
            seconds.setdefault(name, []).append(time.perf_counter() - began)

        for _ in range(batches + 2):
            ids = np.unique(draw.integers(0, rows, ids_a_batch))
            ones, gradients = np.ones(len(ids), dtype=np.int64), torch.randn(len(ids), width)
            timed("pull, static", lambda ids=ids: peer.pull(ids))
            timed("pull, ours", lambda ids=ids: tables.pull(settings, ids))
            timed("push, static", lambda ids=ids, part=gradients: peer.push(ids, part))
            update = Update(ids, ones, gradients)
            timed("push, ours", lambda one=update: tables.push([one], tables.clock + 1))
        tables.close()
    for kind in ("pull", "push"):
        ours, theirs = (median(seconds[f"{kind}, {who}"][2:]) for who in ("ours", "static"))
        print(
            f"{kind}s, {servers} servers: {ids_a_batch / ours / 1e6:.2f} M rows/s, static "
            f"{ids_a_batch / theirs / 1e6:.2f} M rows/s, {theirs / ours:.2f} times",
            flush=True,
        )


def wait_for_shares(tables: ServedTables, servers: int) -> None:
    while True:
        tables._servers.until_done(tables._servers.find_owners)
        owners = tables._servers.owner_of
        if len(np.unique(owners[owners >= 0])) == servers and (owners >= 0).all():
            return
        time.sleep(0.05)


def fill(tables: ServedTables, rows: int, width: int) -> None:
    for part in np.array_split(np.arange(rows, dtype=np.int64), max(1, rows // 100_000)):
        ones = np.ones(len(part), dtype=np.int64)
        tables.push([Update(part, ones, torch.zeros(len(part), width))], tables.clock + 1)


def measure_saves(rows: int, width: int) -> None:
    """Print how long a worker's pulls and pushes take at rest, and while a server's rows are saved
    or exported."""
    port = free_port()
    with processes([(serve_elastic, (["--port", str(port)],))]), TemporaryDirectory() as folder:
        embedding = ElasticEmbedding("table", width, optimizer=Adagrad(lr=RATE))
        tables = ServedTables([embedding], f"127.0.0.1:{port}")
        wait_for_shares(tables, 1)
        fill(tables, rows, width)
        draw = np.random.default_rng(0)

        def ask(busy: Callable[[], bool]) -> list[float]:
            found = []
            while busy():
                ids = np.unique(draw.integers(0, rows, 1024))
                began = time.perf_counter()
                tables.pull(embedding.table.settings, ids)
                found.append(time.perf_counter() - began)
                update = Update(ids, np.ones(len(ids), dtype=np.int64), torch.ones(len(ids), width))
                began = time.perf_counter()
                tables.push([update], tables.clock + 1)
                found.append(time.perf_counter() - began)
            return found

        def report(what: str, seconds: list[float], took: float) -> None:
            milliseconds = 1e3 * np.sort(seconds)
            half, most = np.quantile(milliseconds, [0.5, 0.99])
            print(
                f"{what}, {rows:,} rows: {took:.1f} s, {len(seconds)} pulls and pushes of 1,024 "
                f"rows: median {half:.1f} ms, 99 of 100 below {most:.1f} ms, longest "
                f"{milliseconds[-1]:.0f} ms",
                flush=True,
            )

        other = ElasticEmbedding("table", width, optimizer=Adagrad(lr=RATE))
        with (
            ServedTables([other], f"127.0.0.1:{port}") as saver,
            ThreadPoolExecutor(1) as apart,
        ):

            def meanwhile(what: str, act: Callable[[], Any]) -> Any:
                began = time.perf_counter()
                acting = apart.submit(act)
                seconds = ask(lambda: not acting.done())
                report(what, seconds, time.perf_counter() - began)
                return acting.result()

            meanwhile("at rest", lambda: time.sleep(10.0))
            first = meanwhile("a save of all", lambda: saver.save(f"{folder}/all"))
            meanwhile("a save of changes", lambda: saver.save(f"{folder}/changes", after=first))
            meanwhile("an export of all", lambda: saver.export(f"{folder}/exports", 1))
            meanwhile("an export of changes", lambda: saver.export(f"{folder}/exports", 2))
        tables.close()
