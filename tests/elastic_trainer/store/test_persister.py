"""The agent verifies what was saved and brings it to storage, newest first."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.store import owned_folder, replica
from elastic_trainer.store.ownership import TRAINING, Training
from elastic_trainer.store.persister import Persister, Saved
from elastic_trainer.store.slot import Slots
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.store.slot_states import save
from tests.elastic_trainer.store.stuck_calls import StuckCalls


def training(folder: Path) -> None:
    """A folder of the training that the slots are labelled with."""
    folder.mkdir()
    (folder / TRAINING).write_bytes(Training("t").encode())


class TestPersister:
    @pytest.fixture
    def persister(self, tmp_path: Path) -> Iterator[Persister]:
        training(tmp_path / "commits")
        self.sealed, self.stored = list[int](), list[int]()
        persister = Persister(
            lambda saved, _: self.sealed.append(saved.step),
            lambda saved, _: self.stored.append(saved.step),
        )
        yield persister
        persister.close(5)

    def settle(self, persister: Persister, *, storage: bool) -> str:
        answer, said = threading.Event(), [""]

        def done(error: str) -> None:
            said[0] = error
            answer.set()

        persister.flush(storage, done)
        assert answer.wait(20), "no answer"
        return said[0]

    def save(self, persister: Persister, tmp_path: Path, step: int) -> None:
        (tmp_path / "slots").mkdir(exist_ok=True)
        slot = save(Slots(tmp_path / "slots", 0), step)
        persister.saved(
            Saved(str(slot.path), step, 0, 1, str(tmp_path / "commits"), retry_seconds=0.0)
        )

    def test_what_is_gone_from_memory_is_not_said_to_be_in_storage(
        self, persister: Persister, tmp_path: Path
    ) -> None:
        (tmp_path / "slots").mkdir()
        slot = save(Slots(tmp_path / "slots", 0), 1)
        slot.path.unlink()
        persister.saved(Saved(str(slot.path), 1, 0, 1, str(tmp_path / "commits")))
        assert "step 1 can't be brought to" in self.settle(persister, storage=True)
        self.save(persister, tmp_path, 2)
        assert self.settle(persister, storage=True) == ""
        assert self.stored == [2]

    def test_what_is_saved_to_memory_that_was_cleared_meanwhile_comes_to_storage(
        self, persister: Persister, tmp_path: Path
    ) -> None:
        self.save(persister, tmp_path, 1)
        assert self.settle(persister, storage=True) == ""
        for path in (tmp_path / "slots").iterdir():
            path.unlink()
        self.save(persister, tmp_path, 2)  # to a file of the same name
        assert self.settle(persister, storage=True) == ""
        assert (self.sealed, self.stored) == ([1, 2], [1, 2])

    def test_while_storage_is_slow_saves_go_on_and_the_newest_is_next(
        self, persister: Persister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        going, begun = threading.Event(), threading.Event()
        write = replica.write_replica

        def slow(*arguments: Any, **given: Any) -> Any:
            begun.set()
            assert going.wait(20)
            return write(*arguments, **given)

        monkeypatch.setattr("elastic_trainer.store.persister.write_replica", slow)
        self.save(persister, tmp_path, 1)
        assert begun.wait(20)
        for step in range(2, 9):
            self.save(persister, tmp_path, step)
            assert self.settle(persister, storage=False) == ""  # doesn't wait for storage
        assert self.sealed == list(range(1, 9))
        going.set()
        assert self.settle(persister, storage=True) == ""
        assert self.stored == [1, 8]
        storage = Storage(tmp_path / "commits")
        assert [commit.step for commit in storage.commits()] == [8, 1]
        found = replica.read_replica(storage, storage.commits()[0])
        assert torch.equal(found["model"]["a"], torch.full((50,), 8.0))
        assert found["cursor"]["step"] == 8

    def test_a_storage_that_never_returns_keeps_nobody_waiting_for_ever(
        self, persister: Persister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(owned_folder, "SLOW_SECONDS", 2.0)
        server_returns, asked = threading.Event(), threading.Event()
        sync, main = os.fsync, threading.current_thread()

        def silent(descriptor: int) -> None:
            if threading.current_thread() is not main:
                asked.set()
                calls.stay(server_returns)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", silent)
        try:
            with StuckCalls() as calls:
                self.save(persister, tmp_path, 1)
                assert asked.wait(20)
                for step in range(2, 5):
                    self.save(persister, tmp_path, step)
                    assert self.settle(persister, storage=False) == ""  # training goes on
                assert "no answer for 2 s" in self.settle(persister, storage=True)
            stuck = [one for one in threading.enumerate() if one.name == "ask-storage"]
            assert len(stuck) == 1, "however many were tried"
        finally:
            server_returns.set()
        for thread in stuck:
            thread.join()
        assert self.stored == []
        assert Storage(tmp_path / "commits").commits() == []
        self.save(persister, tmp_path, 5)
        assert self.settle(persister, storage=True) == ""
        assert self.stored == [5]

    def test_an_error_is_told_to_who_waits_and_the_next_may_succeed(
        self, persister: Persister, tmp_path: Path
    ) -> None:
        shutil.rmtree(tmp_path / "commits")
        (tmp_path / "commits").write_text("in the way")
        self.save(persister, tmp_path, 1)
        assert "commits" in self.settle(persister, storage=True)
        assert self.settle(persister, storage=False) == ""
        (tmp_path / "commits").unlink()
        training(tmp_path / "commits")
        self.save(persister, tmp_path, 2)
        assert self.settle(persister, storage=True) == ""
        assert (self.sealed, self.stored) == ([1, 2], [2])

    def test_nothing_saved_is_nothing_to_wait_for(self, persister: Persister) -> None:
        assert self.settle(persister, storage=True) == ""
