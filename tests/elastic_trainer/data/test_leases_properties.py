"""Whatever happens to workers, owner and coordinator: the final model saw each lease once."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from elastic_trainer.data.audit import verify
from elastic_trainer.data.ledger import Lease, Ledger
from elastic_trainer.shards import leases
from elastic_trainer.shards.leases import Done, Fetch, Later, Leases, Lost, Opened, Owned, Told
from elastic_trainer.shards.ranges import NOTHING, Ranges
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples


@dataclass
class Worker:
    name: str
    held: Ranges = NOTHING
    life: str = ""
    leases: list[Lease] = field(default_factory=list)
    connected: bool = True


# Functions with names: hypothesis parses this file for a lambda's text at each step, and Python's
# 3.11 parser fails now and then (SystemError) where another thread uses it, too.
def _has_strays(machine: Interleaving) -> bool:
    return bool(machine.stray)


def _has_workers(machine: Interleaving) -> bool:
    return bool(machine.workers)


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

    @precondition(_has_strays)
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

    @precondition(_has_workers)
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
TestInterleaving.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
