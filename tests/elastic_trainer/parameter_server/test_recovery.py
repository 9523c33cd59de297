"""Servers are killed: rows go back to a commit, or go on as another server copied them last."""

from __future__ import annotations

import copy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.row_optimizer import SGD
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.parameter_server import known_servers
from elastic_trainer.parameter_server.__main__ import EXIT_EPOCH
from elastic_trainer.parameter_server.client import ServedTables, ServerError
from elastic_trainer.proto.parameter_server_pb2 import History

from tests.elastic_trainer.parameter_server.servers import ALL, Servers, Worker, embedding

pytestmark = pytest.mark.process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Servers]]:
    started = []

    def begin(*options: object, **given: Any) -> Servers:
        servers = Servers(*options, of_first=("--storage", tmp_path / "storage"), **given)
        started.append(servers)
        return servers

    yield begin
    for one in started:
        one.close()


class Job:
    """A worker, its commits, and what is to come out."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.worker, self._folder, self._number = Worker(servers), folder, 0
        self._own, self._draw = copy.deepcopy((self.worker.own, self.worker.draw))
        self._saved: dict[str, Any] | None = None

    def commit(self) -> None:
        self._number += 1
        self._saved = self.worker.tables.save(self._folder / f"tables-{self._number}")
        self._own, self._draw = copy.deepcopy((self.worker.own, self.worker.draw))

    def find_out(self) -> None:
        with pytest.raises(ServerError, match=r"the rows of \d+ buckets were lost"):
            self.worker.train(10_000)

    def go_back(self) -> None:
        """Go on from the last commit, on all servers."""
        worker = self.worker
        if self._saved is None:
            worker.tables.clear()
        else:
            worker.tables.load(self._saved)
        worker.own, worker.draw = copy.deepcopy((self._own, self._draw))
        worker.reference = SplitTables([worker.own])
        worker.check()
        worker.train(3)
        worker.check()


def test_rows_are_those_of_the_commit_wherever_servers_were_killed(
    start: Callable[..., Servers], tmp_path: Path
) -> None:
    servers = start()
    job = Job(servers, tmp_path)
    worker = job.worker
    worker.train(3)

    # Before the first commit: the servers say so, and don't begin anew by themselves.
    servers.restart(servers.first)
    job.find_out()
    with pytest.raises(ServerError, match="were lost"):
        ServedTables([embedding(admit_after=2)], servers.first).pull(
            worker.own.table.settings, np.array([1])
        )
    job.go_back()
    second, third = servers.start(), servers.start()
    worker.train_until(3)
    job.commit()

    # The first one, all of them.
    for killed in ([servers.first], [servers.first, second, third]):
        worker.train(3)
        for address in killed:
            servers.end(address, signal.SIGKILL)
        for address in killed:
            servers.start(address)
        job.find_out()
        job.go_back()
        worker.train_until(3)
        job.commit()

    # One that joined, and again while it writes its part of a commit: the one before it counts.
    servers.restart(third, "while it writes its rows")
    job.find_out()
    job.go_back()
    worker.train_until(3)
    back = servers.restart_once_dead(third)
    with pytest.raises(ServerError, match="were lost"):
        job.commit()
    back.join()
    job.go_back()

    # The first one while it loads: it neither has the new rows nor gives the old ones.
    servers.restart(servers.first, "once it noted that others count")
    job.find_out()
    back = servers.restart_once_dead(servers.first)
    job.go_back()
    back.join()
    worker.train_until(3)
    worker.check()


def test_lost_server_is_followed_by_the_one_that_copied_its_rows(
    start: Callable[..., Servers], tmp_path: Path
) -> None:
    servers = start("--copy-every", 0.2)
    second, _third = servers.start(), servers.start()
    module = ElasticEmbedding("counts", 2, optimizer=SGD(lr=1.0), dtype=torch.float64)
    tables = ServedTables([module], servers.first, patience=120)
    ids = ALL[:, 0]
    with torch.no_grad():
        first_values = module(ids[:, None]).clone()
    steps, stop, problem = 0, threading.Event(), []

    def push() -> None:
        nonlocal steps
        try:
            module(ids[:, None]).sum().backward()
            tables.step()
            steps += 1
        except ServerError as error:
            problem.append(error)
            stop.set()

    def pushes_lost() -> set[int]:
        """Return, for each server that held rows, how many pushes those have not had."""
        with torch.no_grad():
            had = (first_values - module(ids[:, None]))[:, 0]
        return {round(one) for one in (steps - had).tolist()}

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)
            tables._servers.until_done(tables._servers.find_owners)

    def shares() -> list[int]:
        return [
            int(one)
            for one in np.bincount(tables._servers.owner_of[tables._servers.owner_of >= 0])
            if one
        ]

    push()
    wait_for(lambda: len(shares()) == 3 and max(shares()) - min(shares()) <= 1)
    for killed in (second, servers.first):
        while not stop.is_set() and steps < 5:
            push()
        time.sleep(3.0)  # so that copies are made of all that was pushed
        assert pushes_lost() == {0}
        servers.restart(killed)
        push()
        assert not problem, problem
        assert pushes_lost() == {0}, "rows were lost that had been copied"
        wait_for(lambda: len(shares()) == 3 and max(shares()) - min(shares()) <= 1)

    time.sleep(2.0)
    thread = threading.Thread(target=lambda: [push() for _ in iter(stop.is_set, True)])
    thread.start()
    time.sleep(2.0)
    servers.restart(second)
    wait_steps = steps + 20
    while steps < wait_steps and not stop.is_set():
        time.sleep(0.1)
    stop.set()
    thread.join()
    assert not problem, problem
    # All rows of the lost server are of one moment; no other row lost anything, none has it twice.
    lost = pushes_lost()
    assert len(lost) <= 2 and min(lost) >= 0 and 0 in lost, lost


def test_worker_that_wants_rows_of_one_moment_is_refused_a_copys_though_it_saw_no_loss(
    start: Callable[..., Servers], tmp_path: Path
) -> None:
    """A server is lost in a long step of it, comes back and holds what it held, as it was."""
    servers = start("--copy-every", 0.2)
    second, worker = servers.start(), Worker(servers)
    worker.train_until(2)
    time.sleep(1.0)  # so that there are copies
    module = embedding(admit_after=2)
    tables, ids = ServedTables([module], servers.first, patience=20), ALL[:200]
    with torch.no_grad():
        module(ids)
    known = tables._servers
    history = History(epoch=known.owners.epoch, adopted=known.owners.adopted)
    tables.act_as("exact", 0, history)
    module(ids).square().sum().backward()
    known.find_owners = lambda: None  # type: ignore[method-assign]
    servers.restart(second)
    servers.wait_for_shares(2, adopted=history.adopted + 1)
    # By servers, and not because it asked who holds what.
    told = r"^parameter server .* go on from a copy"
    with pytest.raises(ServerError, match=told), torch.no_grad():
        module(ids)
    with pytest.raises(ServerError, match=told):
        tables.step()
    with pytest.raises(ServerError, match=told):
        tables.write(tmp_path)


def test_first_server_gives_its_rows_away_before_it_ends(start: Callable[..., Servers]) -> None:
    servers = start()
    worker = Worker(servers)
    servers.start()
    worker.train_until(2)
    assert servers.end(servers.first, signal.SIGTERM) == 0
    servers.start(servers.first)
    worker.train_until(2)
    worker.check()


def test_server_whose_rows_another_holds_by_now_ends(
    start: Callable[..., Servers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs: workers ask its successor, and don't wait for the longest time for an answer."""
    monkeypatch.setattr(known_servers, "ANSWER_SECONDS", 3600.0)
    servers = start("--copy-every", 0.2, lease=1.5)
    second = servers.start()
    worker = Worker(servers)
    worker.train_until(2)
    time.sleep(2.0)
    process = servers.processes.pop(second)
    process.send_signal(signal.SIGSTOP)
    try:
        worker.train(3)
        worker.check()
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == EXIT_EPOCH
        worker.train(3)
        worker.check()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
