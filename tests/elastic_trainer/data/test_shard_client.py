"""Leases over gRPC, from real coordinators to real processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.agent.succession_service import Requests, SuccessionService
from elastic_trainer.data.audit import verify
from elastic_trainer.data.ledger import Ledger
from elastic_trainer.data.shard_client import LeaseError, ShardClient
from elastic_trainer.identity import Identity
from elastic_trainer.succession.agent_status import AgentStatus

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.agent.identity import alone

pytestmark = pytest.mark.process


class Coordinator:
    """A real one, on a port of its own."""

    def __init__(self) -> None:
        self._port = free_endpoint()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> str:
        """Starts it, again at each call; its address."""
        self.end()
        arguments = ["-m", "elastic_trainer.coordinator", "--port", str(self._port)]
        arguments += ["--parent", str(os.getpid())]
        self._process = subprocess.Popen([sys.executable, *arguments])
        return f"127.0.0.1:{self._port}"

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)


@pytest.fixture
def endpoint() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    yield coordinator
    coordinator.end()


def test_a_loop_of_one_process(endpoint: Coordinator, tmp_path: Path) -> None:
    ledger = Ledger(samples=50, epochs=2, size=8, audit=tmp_path)
    with ShardClient(endpoint(), ledger=ledger) as client:
        step = 0
        while found := client.fetch(3):
            assert all(ledger.add(lease) for lease in found)
            step += 1
            if step == 2:
                saved = ledger.state_dict()
                client.commit(step)
            if step == 4:
                ledger.load_state_dict(saved)  # the model is rolled back
                assert not ledger.add(found[-1])
        client.commit(step)
    assert ledger.complete
    assert verify(tmp_path, 50, 2).ok


def work(address: str, pipe: Any, seconds: float) -> None:
    with ShardClient(address, samples=400, epochs=2, size=5) as client:
        while found := client.fetch(4):
            for lease in found:
                time.sleep(seconds)
                pipe.put(lease)


def test_workers_and_the_coordinator_are_killed(endpoint: Coordinator, tmp_path: Path) -> None:
    address = endpoint()
    context = multiprocessing.get_context("spawn")
    pipe = context.Queue()
    ledger = Ledger(samples=400, epochs=2, size=5, audit=tmp_path)
    owner = ShardClient(address, ledger=ledger)
    owner.tell()
    workers = [context.Process(target=work, args=(address, pipe, 0.003)) for _ in range(3)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 300  # three processes begin cold
    step, applied = 0, 0
    try:
        while not ledger.complete:
            assert time.monotonic() < deadline, ledger.consumed
            with contextlib.suppress(Exception):
                applied += ledger.add(pipe.get(timeout=0.2))
            if applied > 20 and step == 0:
                assert workers[0].pid is not None
                os.kill(workers[0].pid, signal.SIGSTOP)  # silent, then dead
            if applied > 60 and step == 1:
                endpoint()
            if applied >= 20 * (step + 1):
                step += 1
                owner.commit(step)
        owner.commit(step + 1)
        for worker in workers[1:]:
            worker.join(60)
            assert worker.exitcode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.join(120)
        owner.close()
    report = verify(tmp_path, 400, 2)
    assert report.ok, report


def test_a_misfit_worker_is_told_why(endpoint: Coordinator) -> None:
    address = endpoint()
    with ShardClient(address, ledger=Ledger(samples=50, epochs=1, size=8)) as owner:
        owner.tell()
        with (
            ShardClient(address, samples=51, epochs=1, size=8) as worker,
            pytest.raises(
                LeaseError, match=r"expected the model owner's .*samples=50.*found .*=51"
            ),
        ):
            worker.fetch()
        with pytest.raises(LeaseError, match="has no ledger"):
            ShardClient(address, samples=50).commit(1)


def test_a_waiting_fetch_wakes_and_times_out(endpoint: Coordinator) -> None:
    address = endpoint()
    worker = ShardClient(address, samples=10, epochs=1, size=8)
    assert worker.fetch(timeout=0.1) == []
    ledger = Ledger(samples=10, epochs=1, size=8)
    owner = ShardClient(address, ledger=ledger)
    starting = threading.Timer(0.3, owner.tell)
    starting.start()
    assert worker.fetch(2, timeout=60)
    starting.join()
    worker.close()
    assert [lease.start for lease in owner.fetch(2, timeout=60)] == [0, 8]
    owner.close()


def test_leases_follow_the_coordinator_to_another_agent(
    endpoint: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = endpoint()
    other = Coordinator()
    second = other()
    status = AgentStatus("", "agent", 1000, second, hosts=True, heard=True)
    agent = alone(free_endpoint(), 30.0)
    monkeypatch.setenv("VOLCANO_ELASTIC_PEERS", f"127.0.0.1:{agent.port}")
    ledger = Ledger(samples=50, epochs=1, size=5)
    with serving(agent, status), ShardClient(first, ledger=ledger) as owner:
        owner.tell()
        kept = owner.fetch(2)
        assert ledger.add(kept[0])
        owner.commit(1)
        endpoint.end()
        try:
            assert [lease.start for lease in owner.fetch(2)] == [10, 15]
        finally:
            other.end()


@contextlib.contextmanager
def serving(agent: Identity, status: AgentStatus) -> Iterator[None]:
    """Lets an agent tell this of itself."""
    loop = asyncio.new_event_loop()
    requests = Requests(lambda: status, unasked, unasked, unasked)
    service = SuccessionService(agent, requests)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(service.serve(), loop).result(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(service.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def unasked(found: object) -> Any:
    raise AssertionError(f"nobody should tell {found}")


def test_no_coordinator_is_an_error_after_some_patience() -> None:
    client = ShardClient(f"127.0.0.1:{free_endpoint()}", samples=10, patience=0.3)
    with pytest.raises(LeaseError, match="didn't answer"):
        client.fetch()


def test_a_coordinator_that_falls_silent_is_noticed_and_gone_on_with(endpoint: Coordinator) -> None:
    address = endpoint()
    ledger = Ledger(samples=50, epochs=1, size=5)
    with (
        ShardClient(address, ledger=ledger) as owner,
        ShardClient(address, samples=50, epochs=1, size=5) as worker,
    ):
        owner.tell()
        assert worker.fetch()
        endpoint.signal(signal.SIGSTOP)  # as if its machine had vanished: no connection is reset
        patience, worker._patience = worker._patience, 1.0
        with pytest.raises(LeaseError, match="didn't answer"):
            worker.fetch()
        worker._patience = patience
        back = threading.Timer(3.0, endpoint.signal, [signal.SIGCONT])
        back.start()
        assert len(owner.fetch(2)) == 2  # the same call, however long it was silent
        back.join()
        assert worker.fetch()
