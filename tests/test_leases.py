"""Whatever happens to workers, owner and coordinator: the final model saw each lease once."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torchrun_job import free_endpoint

from trainer.coordinator.admission import TOKEN_VARIABLE
from trainer.data import leases
from trainer.data.audit import verify
from trainer.data.leases import Done, Fetch, Later, Leases, Lost, Opened, Owned, Refused, Told
from trainer.data.ledger import Lease, Ledger
from trainer.data.ranges import NOTHING, Ranges
from trainer.data.shard_client import LeaseError, ShardClient
from trainer.data.shards import Shards

# ---- sets of positions

positions = st.frozensets(st.integers(0, 30))


def ranges(found: frozenset[int]) -> Ranges:
    return Ranges.union((at, at + 1) for at in found)


def members(of: Ranges) -> frozenset[int]:
    return frozenset(at for start, stop in of for at in range(start, stop))


@given(positions, positions)
def test_ranges_are_sets(one: frozenset[int], other: frozenset[int]) -> None:
    a, b = ranges(one), ranges(other)
    assert members(a) == one and len(a) == len(one) and bool(a) == bool(one)
    assert a | b == ranges(one | other)
    assert a & b == ranges(one & other)
    assert a - b == ranges(one - other)
    assert members(a.near(b)) >= one & other
    assert members(Ranges.of(0, a.below)) <= one


def test_impossible_bounds_are_refused() -> None:
    for bounds in ((3, 3), (1, 4, 2, 6), (1,)):
        with pytest.raises(ValueError, match="expected an even number of ascending bounds"):
            Ranges(bounds)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 9), positions)
def test_cuts_are_whole_on_a_grid_and_within_an_epoch(
    samples: int, epochs: int, size: int, found: frozenset[int]
) -> None:
    shards = Shards(samples, epochs, size)
    given = ranges(found) & shards.all
    cuts = list(shards.cut(given))
    assert Ranges.union(cuts) == given
    assert sum(stop - start for start, stop in cuts) == len(given)
    for start, stop in cuts:
        assert 0 < stop - start <= size
        assert shards.epoch(start) == shards.epoch(stop - 1)
        assert start % samples // size == (stop - 1) % samples // size


# ---- any interleaving


@dataclass
class Worker:
    name: str
    held: Ranges = NOTHING
    life: str = ""
    leases: list[Lease] = field(default_factory=list)
    connected: bool = True


class Interleaving(RuleBasedStateMachine):
    """A coordinator, workers that send what they computed to a model's owner, and faults.

    The model is the list of leases applied to it; the storage is one commit of model and ledger.
    """

    @initialize(
        samples=st.integers(1, 12),
        epochs=st.integers(1, 2),
        size=st.integers(1, 5),
        n=st.integers(0, 3),
    )
    def begin(self, samples: int, epochs: int, size: int, n: int) -> None:
        self.now = 0.0
        self.folder = tempfile.TemporaryDirectory()
        self.sizes = {"samples": samples, "epochs": epochs, "size": size}
        self.ledger = Ledger(**self.sizes, audit=Path(self.folder.name))
        self.model: list[Lease] = []
        self.saved = (copy.copy(self.model), self.ledger.state_dict(), 0)
        self.state = leases.State()
        self.owner = Worker("owner-0", connected=False)
        self.workers = [Worker(f"worker-{i}", connected=False) for i in range(n)]
        self.stray: list[Lease] = []
        """Leases of workers that were declared lost and are not: they may still arrive."""
        self.names = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.finish()
            self.folder.cleanup()

    def send(self, event: leases.Event) -> leases.Answer:
        self.state, answer = leases.step(self.state, event, self.now)
        return answer

    # The clients' side, as ShardClient has it.

    def connect(self, worker: Worker) -> None:
        if worker.connected:
            return
        worker.connected = True
        if worker is self.owner:
            again = worker.life == self.ledger.life
            if not again:
                worker.life, worker.held = self.ledger.life, Ranges()
            event: leases.Event = Owned(
                worker.name,
                self.ledger.shards,
                worker.life,
                self.ledger.consumed,
                self.saved[2],
                self.ledger.committed,
                worker.held,
                again,
            )
        else:
            event = Opened(worker.name, worker.life, worker.held)
        assert self.send(event) == Done()

    def take(self, worker: Worker, count: int) -> bool:
        self.connect(worker)
        answer = self.send(Fetch(worker.name, self.ledger.shards, count))
        if isinstance(answer, Later):
            return False
        assert isinstance(answer, Leases), answer
        if answer.life != worker.life:
            worker.life, worker.held = answer.life, Ranges()
        worker.held = (worker.held | answer.ranges) - Ranges.of(0, answer.below)
        cuts = list(self.ledger.shards.cut(answer.ranges))
        assert len(cuts) <= count
        worker.leases += [Lease(start, stop, answer.life) for start, stop in cuts]
        return bool(cuts)

    def apply(self, lease: Lease) -> None:
        if self.ledger.add(lease):
            self.model.append(lease)

    @rule(index=st.integers(0, 3), count=st.integers(1, 4), owner=st.booleans())
    def fetch(self, index: int, count: int, owner: bool) -> None:
        if owner:
            self.connect(self.owner)
        self.take([self.owner, *self.workers][index % (1 + len(self.workers))], count)

    @rule(index=st.integers(0, 3))
    def consume(self, index: int) -> None:
        worker = [self.owner, *self.workers][index % (1 + len(self.workers))]
        if worker.leases:
            self.apply(worker.leases.pop(0))

    @precondition(lambda self: self.stray)
    @rule()
    def straggle(self) -> None:
        self.apply(self.stray.pop())

    @rule(durable=st.booleans())
    def tell(self, durable: bool) -> None:
        self.connect(self.owner)
        if durable:
            self.save()
            self.ledger.committed = self.ledger.consumed
        told = Told(self.owner.name, self.ledger.life, self.ledger.consumed, self.saved[2], durable)
        assert self.send(told) == Done()
        self.owner.held -= self.ledger.consumed

    def save(self) -> None:
        self.saved = (copy.copy(self.model), self.ledger.state_dict(), self.saved[2] + 1)

    def roll_back(self) -> None:
        """The owner dies; its successor loads the commit."""
        if self.owner.connected:
            self.send(Lost(self.owner.name))
        self.stray += self.owner.leases
        self.names += 1
        self.owner = Worker(f"owner-{self.names}", connected=False)
        self.model = copy.copy(self.saved[0])
        self.ledger = Ledger(**self.sizes, audit=Path(self.folder.name))
        self.ledger.load_state_dict(self.saved[1])

    @rule(how=st.sampled_from(["in place", "anew", "anew, saved and untold"]))
    def fail(self, how: str) -> None:
        if how == "in place":
            self.roll_back_in_place()
        else:
            if how == "anew, saved and untold":
                self.save()
            self.roll_back()

    def roll_back_in_place(self) -> None:
        """The owner lives on, and loads the commit."""
        self.stray += self.owner.leases
        self.owner.leases = []
        self.model = copy.copy(self.saved[0])
        self.ledger.load_state_dict(self.saved[1])
        self.owner.connected = False  # to be told at the next request

    @precondition(lambda self: self.workers)
    @rule(index=st.integers(0, 2))
    def lose_worker(self, index: int) -> None:
        index %= len(self.workers)
        worker = self.workers[index]
        if worker.connected:
            self.send(Lost(worker.name))
        self.stray += worker.leases
        self.names += 1
        self.workers[index] = Worker(f"worker-{index}-{self.names}", connected=False)

    @rule(index=st.integers(0, 3))
    def cut(self, index: int) -> None:
        """A connection ends; both live on."""
        worker = [self.owner, *self.workers][index % (1 + len(self.workers))]
        if worker.connected:
            self.send(Lost(worker.name))
            worker.connected = False

    @rule(seconds=st.sampled_from([0.1, 2.0]))
    def restart_coordinator(self, seconds: float) -> None:
        self.state = leases.State()
        self.now += seconds
        for worker in [self.owner, *self.workers]:
            worker.connected = False

    @rule()
    def wait(self) -> None:
        self.now += 0.6

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not hasattr(self, "state") or not self.state.life:
            return
        state = self.state
        known = state.todo | state.consumed
        for held in state.doing.values():
            known |= held
            assert not held & state.todo
            assert not held & state.consumed
        assert known == state.shards.all
        assert sum(map(len, state.doing.values())) == len(
            Ranges.union(interval for held in state.doing.values() for interval in held)
        )

    def finish(self) -> None:
        """From any state, ordinary work comes to the end, and the model has all of it once."""
        while len(self.stray) > 1:
            self.straggle()
        for _ in range(1000):
            self.now += 1.1
            busy = False
            self.connect(self.owner)
            for worker in [*self.workers, self.owner]:
                busy |= self.take(worker, 2)
                while worker.leases:
                    self.apply(worker.leases.pop())
            self.tell(True)
            if self.state.complete and not busy:
                break
        else:
            raise AssertionError(f"no end: {self.state}")
        if self.stray:
            self.straggle()
        assert sorted(self.stream()) == list(range(self.sizes["samples"] * self.sizes["epochs"]))
        report = verify(Path(self.folder.name), self.sizes["samples"], self.sizes["epochs"])
        assert report.ok, report

    def stream(self) -> list[int]:
        return [at for lease in self.model for at in range(lease.start, lease.stop)]


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# ---- single decisions

SHARDS = Shards(20, 1, 5)


def opened(life: str = "a", **given: Any) -> leases.State:
    event = Owned("owner", SHARDS, life, given.pop("consumed", Ranges()), **given)
    state, answer = leases.step(leases.State(), event, 0.0)
    assert answer == Done()
    return state


def fetched(state: leases.State, client: str, count: int = 1) -> tuple[leases.State, Ranges]:
    state, answer = leases.step(state, Fetch(client, SHARDS, count), 10.0)
    assert isinstance(answer, Leases), answer
    return state, answer.ranges


def test_nothing_is_handed_out_before_the_owner_came() -> None:
    state, _ = leases.step(leases.State(), Opened("worker"), 0.0)
    assert leases.step(state, Fetch("worker", SHARDS, 1), 0.0)[1] == Later()


def test_a_restarted_coordinator_waits_for_those_who_hold_leases() -> None:
    state = opened(again=True)
    assert leases.step(state, Fetch("new", SHARDS, 1), 0.5)[1] == Later(leases.RETELL_SECONDS)
    state, _ = leases.step(state, Opened("old", "a", Ranges.of(0, 10)), 0.6)
    assert fetched(state, "new")[1] == Ranges.of(10, 15)


def test_a_lost_workers_leases_go_to_the_next_who_asks() -> None:
    state, first = fetched(opened(), "one", 2)
    assert first == Ranges.of(0, 10)
    state, _ = leases.step(state, Lost("one"), 1.0)
    assert fetched(state, "two")[1] == Ranges.of(0, 5)


def test_idle_workers_wait_while_a_rollback_could_bring_work() -> None:
    state, _ = fetched(opened(), "one", 4)
    assert leases.step(state, Fetch("two", SHARDS, 1), 1.0)[1] == Later()
    state, _ = leases.step(state, Told("owner", "a", SHARDS.all), 1.0)
    assert leases.step(state, Fetch("two", SHARDS, 1), 1.0)[1] == Later()
    state, _ = leases.step(state, Told("owner", "a", SHARDS.all, 9, True), 1.0)
    assert leases.step(state, Fetch("two", SHARDS, 1), 1.0)[1] == Leases(
        "a", complete=True, below=20
    )


def test_the_former_owner_is_refused() -> None:
    state, _ = leases.step(opened(), Owned("successor", SHARDS, "b", Ranges()), 1.0)
    answer = leases.step(state, Told("owner", "a", Ranges.of(0, 5), 3, True), 1.0)[1]
    assert isinstance(answer, Refused)
    assert "no longer owns the model: expected successor in life b, found owner" in answer.reason


def test_another_data_set_is_refused() -> None:
    grown = Shards(21, 1, 5)
    answer = leases.step(opened(), Fetch("worker", grown, 1), 1.0)[1]
    assert isinstance(answer, Refused)
    assert "expected the model owner's Shards(samples=20" in answer.reason
    assert "found Shards(samples=21" in answer.reason
    answer = leases.step(opened(), Owned("owner", grown, "b", Ranges()), 1.0)[1]
    assert answer == Refused("the job's data set is another: expected samples=20, found 21")
    with pytest.raises(ValueError, match="another data set: expected seed=0, found 1"):
        Ledger(samples=20, epochs=1, size=5, seed=1).load_state_dict(
            Ledger(samples=20, epochs=1, size=5).state_dict()
        )


def test_the_model_takes_nothing_twice_and_nothing_undone() -> None:
    ledger = Ledger(samples=20, epochs=1, size=5)
    lease = Lease(0, 5, ledger.life)
    assert ledger.add(lease)
    assert not ledger.add(lease)
    late = Lease(5, 10, ledger.life)
    ledger.load_state_dict(ledger.state_dict())
    assert not ledger.add(late)
    assert ledger.add(Lease(5, 10, ledger.life))


# ---- real processes


@pytest.fixture
def endpoint() -> Iterator[Any]:
    """Starts a coordinator, again at each call; yields its address."""
    port = free_endpoint()
    running: list[subprocess.Popen[bytes]] = []

    def start(token: str = "") -> str:
        while running:
            process = running.pop()
            process.kill()
            process.wait(10)
        arguments = ["-m", "trainer.coordinator", "--port", str(port)]
        environment = {**os.environ, TOKEN_VARIABLE: token}
        running.append(subprocess.Popen([sys.executable, *arguments], env=environment))
        return f"127.0.0.1:{port}"

    yield start
    for process in running:
        process.kill()
        process.wait(10)


def test_a_loop_of_one_process(endpoint: Any, tmp_path: Path) -> None:
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


def test_workers_and_the_coordinator_are_killed(endpoint: Any, tmp_path: Path) -> None:
    address = endpoint()
    context = multiprocessing.get_context("spawn")
    pipe = context.Queue()
    ledger = Ledger(samples=400, epochs=2, size=5, audit=tmp_path)
    owner = ShardClient(address, ledger=ledger)
    owner.tell()
    workers = [context.Process(target=work, args=(address, pipe, 0.003)) for _ in range(3)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
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
            worker.join(20)
            assert worker.exitcode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.join(10)
        owner.close()
    report = verify(tmp_path, 400, 2)
    assert report.ok, report


def test_a_misfit_worker_is_told_why(endpoint: Any) -> None:
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


def test_leases_are_for_holders_of_the_jobs_token(
    endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = endpoint("its-own-token")
    for wrong, found in (("", "none"), ("another", "another one")):
        client = ShardClient(address, samples=10, token=wrong)
        refused = f"refuses this client: expected this job's token .* found {found};"
        with pytest.raises(LeaseError, match=refused) as error:
            client.fetch(timeout=0)
        assert "its-own-token" not in str(error.value)
    monkeypatch.setenv(TOKEN_VARIABLE, "its-own-token")
    with ShardClient(address, ledger=Ledger(samples=10, epochs=1, size=8)) as owner:
        owner.tell()
        with ShardClient(address, samples=10, epochs=1, size=8) as worker:
            assert worker.fetch(2, timeout=20)


def test_a_waiting_fetch_wakes_and_times_out(endpoint: Any) -> None:
    address = endpoint()
    worker = ShardClient(address, samples=10, epochs=1, size=8)
    assert worker.fetch(timeout=0.1) == []
    ledger = Ledger(samples=10, epochs=1, size=8)
    owner = ShardClient(address, ledger=ledger)
    starting = threading.Timer(0.3, owner.tell)
    starting.start()
    assert worker.fetch(2, timeout=20)
    starting.join()
    worker.close()
    assert [lease.start for lease in owner.fetch(2, timeout=20)] == [0, 8]
    owner.close()


def test_no_coordinator_is_an_error_after_some_patience() -> None:
    client = ShardClient(f"127.0.0.1:{free_endpoint()}", samples=10, patience=0.3)
    with pytest.raises(LeaseError, match="didn't answer"):
        client.fetch()
