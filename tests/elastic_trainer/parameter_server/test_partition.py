"""Servers, as processes, between which and whose worker nothing comes for a while: nothing is lost
or doubled, and all goes on by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.embeddings.hashing import buckets
from elastic_trainer.parameter_server import known_servers
from elastic_trainer.parameter_server.__main__ import EXIT_EPOCH
from elastic_trainer.parameter_server.wire import pack
from elastic_trainer.proto import parameter_server_pb2 as messages

from embedded_cluster.readiness import free_port
from tests.elastic_trainer.parameter_server.relay import BACK, TO_TARGET, Relay
from tests.elastic_trainer.parameter_server.servers import ALL, Servers, Worker

pytestmark = pytest.mark.process


class Cluster:
    """A first server, and a second one, with relays before them."""

    def __init__(self, *options: object, storage: Path, **given: Any) -> None:
        self.servers = Servers(*options, of_first=("--storage", storage), **given)
        self.second = f"127.0.0.1:{free_port()}"
        self.to_second = Relay(self.second)
        """By which workers and the first server reach the second one."""
        self.to_first = Relay(self.servers.first)
        """By which the second server reports to the first one."""

    def start_second(self) -> None:
        of_its_own = ("--address", self.to_second.address, "--join", self.to_first.address)
        self.servers.start(self.second, own=of_its_own)

    def close(self) -> None:
        for relay in (self.to_second, self.to_first):
            relay.close()
        self.servers.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    started = []

    def begin(*options: object, **given: Any) -> Cluster:
        started.append(Cluster(*options, storage=tmp_path / "storage", **given))
        return started[-1]

    yield begin
    for one in started:
        one.close()


class Training(threading.Thread):
    """Has a worker train in a thread; `end` raises what came of it."""

    def __init__(self, train: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._train, self._error = train, None
        self.start()

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self.join(120)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("ways", [(TO_TARGET, BACK), (BACK,)], ids=["nothing", "no answer"])
def test_worker_that_reaches_a_server_no_more_waits_and_each_push_counts_once(
    start: Callable[..., Cluster], ways: tuple[str, ...]
) -> None:
    """With answers lost alone, each push comes several times."""
    cluster = start()
    worker = Worker(cluster.servers)
    cluster.start_second()
    worker.train_until(2)
    for _ in range(2):
        cluster.to_second.cut(*ways)
        training = Training(lambda: worker.train(3))
        training.join(2 * known_servers.FIRST_ANSWER_SECONDS)
        assert training.is_alive(), "it trained without its rows"
        cluster.to_second.heal()
        training.end()
        worker.check()


@pytest.mark.parametrize(
    ("way", "after"),
    [(TO_TARGET, 100), (TO_TARGET, 30_000), (BACK, 0), (BACK, 300)],
)
def test_move_between_servers_that_hear_nothing_of_each_other_is_made_anew_or_is_done(
    start: Callable[..., Cluster], way: str, after: int
) -> None:
    cluster = start()
    worker = Worker(cluster.servers)
    worker.train(20)
    cluster.to_second.cut(way, after=after)
    cluster.start_second()
    training = Training(lambda: worker.train_until(2))
    cluster.to_second.wait_until_cut(way, 120)
    training.join(3)
    assert training.is_alive(), "nothing was cut"
    cluster.to_second.heal()
    training.end()
    worker.train(3)
    worker.check()


def test_server_that_hears_nothing_of_the_first_for_a_moment_keeps_its_rows(
    start: Callable[..., Cluster],
) -> None:
    cluster = start(lease=120.0)  # longer than three steps on any machine
    worker = Worker(cluster.servers)
    cluster.start_second()
    worker.train_until(2)
    cluster.to_first.cut()
    worker.train(3)
    cluster.to_first.heal()
    worker.train(3)
    worker.check()


def test_server_that_the_first_hears_no_more_serves_no_more_and_its_copy_goes_on(
    start: Callable[..., Cluster],
) -> None:
    """Though workers reach it, and it reaches its keeper: never have two servers one row."""
    cluster = start("--copy-every", 0.2, lease=1.5)
    worker = Worker(cluster.servers)
    cluster.start_second()
    worker.train_until(2)
    worker.check()
    servers = worker.tables._servers
    ids = ALL[:, 0].numpy()
    of_second = list(servers.owners.addresses).index(cluster.to_second.address)
    held = ids[servers.owner_of[buckets(ids)] == of_second]
    assert len(held)
    cluster.to_first.cut()
    deadline = time.monotonic() + 60
    while cluster.to_second.address in servers.holders():
        assert time.monotonic() < deadline
        time.sleep(0.1)
        servers.until_done(servers.find_owners)
    request = messages.PullRequest(
        worker=worker.tables.worker, table="items", ids=pack(held), clock=-1, staleness=-1
    )
    reply = servers.ask("Pull", [(cluster.to_second.address, request)])
    assert reply == [None], "two servers serve a row"
    worker.check()
    before = worker.rows()
    cluster.to_first.heal()
    process = cluster.servers.processes.pop(cluster.second)
    assert process.wait(60) == EXIT_EPOCH
    assert torch.equal(worker.rows(), before)
    worker.train(3)
    worker.check()
