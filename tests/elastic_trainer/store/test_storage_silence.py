"""A hard network mount whose server is gone: calls that never return, or return late."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import tenacity
from elastic_trainer.store import answer as answer_module
from elastic_trainer.store import folder as folder_module
from elastic_trainer.store import owned_folder
from elastic_trainer.store.answer import LOOKS, Calls, SilenceError, moved
from elastic_trainer.store.errors import SilentError, UnavailableError
from elastic_trainer.store.folder import MARKER, LocalFolder
from elastic_trainer.store.ownership import TRAINING
from elastic_trainer.store.storage import Storage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.store.faulty_folder import FaultyFolder, faulty_storage
from tests.elastic_trainer.store.small_commits import commit
from tests.elastic_trainer.store.stuck_calls import StuckCalls
from tests.examples import examples


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenacity.wait_random_exponential, "__call__", lambda *_: 0.0)
    monkeypatch.setattr(owned_folder, "SLOW_SECONDS", 2.0)
    monkeypatch.setattr(folder_module, "CHUNK", 10)


class Server:
    """That a folder's calls wait for; the first one, or all, of an operation on such a name."""

    def __init__(self, files: FaultyFolder, operation: str, name: str = "") -> None:
        self._operation, self._name = operation, name
        self._returns, self._stuck = threading.Event(), StuckCalls()
        self.asked = threading.Event()
        files.fault = self._block

    def _block(self, operation: str, name: str) -> None:
        if operation == self._operation and self._name in name:
            self.asked.set()
            self._stuck.stay(self._returns)

    def __enter__(self) -> Server:
        self._stuck.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stuck.__exit__(None, None, None)
        self._returns.set()
        for thread in left_behind():
            thread.join()


def left_behind() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ask-storage"]


def identities(folder: Path) -> list[tuple[int, int]]:
    """Return the identities of commits that verify whole, newest first."""
    storage = Storage(folder)
    for found in storage.commits():
        for name in found.files:
            storage.verify(found, name)
    return [found.identity for found in storage.commits()]


class TestReading:
    @pytest.mark.parametrize(
        ("operation", "name"),
        [("list", ""), ("read", TRAINING), ("read", "step-2/" + MARKER), ("read", "state.pt")],
    )
    def test_a_storage_that_never_answers_is_unavailable_and_says_so(
        self, tmp_path: Path, operation: str, name: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.0)
        storage.open()
        commit(storage, 1)
        commit(storage, 2)

        def look() -> None:
            storage.open()
            storage.newest()

        with (
            Server(files, operation, name),
            pytest.raises(SilentError, match=r"can't be (read|used): no answer for 2 s"),
        ):
            look()
        found = storage.newest()
        assert found is not None and found.step == 2

    @pytest.mark.process
    def test_one_that_stops_half_way_is_silent(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path, retry_seconds=0.0)
        storage.open()
        commit(storage, 1)
        found = storage.newest()
        assert found is not None
        state = tmp_path / "step-1" / "state.pt"
        content = state.read_bytes()
        state.unlink()
        os.mkfifo(state)
        test_ends = threading.Event()

        def feed() -> None:
            with state.open("wb", buffering=0) as pipe:
                pipe.write(content[:50])
                test_ends.wait()

        half = threading.Thread(target=feed)
        half.start()
        try:
            with pytest.raises(UnavailableError, match=r"can't be read: no answer for 2 s"):
                storage.verify(found, "state.pt")
        finally:
            test_ends.set()
            half.join()


class TestWriting:
    @pytest.mark.parametrize(
        ("operation", "name"),
        [
            ("begin", ""),
            ("write", "state.pt"),
            ("written", "state.pt"),
            ("rename", "step-3"),
            ("write", MARKER),
            ("written", MARKER),
            ("create", "EPOCH"),
        ],
    )
    def test_a_write_that_never_returns_is_no_commit_and_undoes_none(
        self, tmp_path: Path, operation: str, name: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.0)
        storage.open()
        commit(storage, 1)
        commit(storage, 2)
        if operation == "create":
            storage.hold(7, "token")
        with Server(files, operation, name):
            with pytest.raises(
                SilentError, match="no answer for 2 s: expected it to move bytes"
            ) as no:
                commit(storage, 3)
            assert str(tmp_path) in str(no.value) and "storage_patience" in str(no.value)
            assert identities(tmp_path) == [(1, 2), (1, 1)]
        assert identities(tmp_path) == [(1, 2), (1, 1)], "nor does it become one late"
        files.fault = lambda *_: None
        commit(storage, 4)
        assert identities(tmp_path)[0] == (1, 4)

    def test_a_commit_of_which_the_answer_alone_is_missing_is_whole(self, tmp_path: Path) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.0)
        storage.open()
        commit(storage, 1)
        with Server(files, "renamed", "step-2"), pytest.raises(SilentError):
            commit(storage, 2)
        found = storage.newest()
        assert found is not None and found.identity == (1, 2)

    @pytest.mark.parametrize("operation", ["write", "rename", "delete"])
    def test_what_comes_late_leaves_a_later_runs_commits_alone(
        self, tmp_path: Path, operation: str
    ) -> None:
        cut_off, files = faulty_storage(tmp_path, retry_seconds=0.0, keep=2)
        cut_off.open()
        cut_off.take_over(0, "cut off")
        for step in (1, 2):
            commit(cut_off, step)
        with Server(files, operation, "step-"):
            if operation == "delete":
                commit(cut_off, 3)  # which is made; what is old stays for now
            else:
                with pytest.raises(SilentError):
                    commit(cut_off, 3)
            later = Storage(tmp_path, keep=2)
            later.open()
            claim, _ = later.take_over(0, "later")
            for step in (3, 4):
                commit(later, step, claim.run)
            made = identities(tmp_path)
            assert made == [(claim.run, 4), (claim.run, 3)]
        assert identities(tmp_path) == made

    def test_each_further_call_waits_for_the_one_left_behind(self, tmp_path: Path) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.0)
        storage.open()
        with Server(files, "write", "state.pt") as server:
            for step in (1, 2, 3):
                with pytest.raises(SilentError):
                    commit(storage, step)
            assert server.asked.is_set() and len(left_behind()) == 1
        files.fault = lambda *_: None
        commit(storage, 4)

    def test_a_listing_for_retention_that_never_returns_costs_no_commit(
        self, tmp_path: Path
    ) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.0, keep=2)
        storage.open()
        for step in (1, 2):
            commit(storage, step)
        with Server(files, "read", "step-1/" + MARKER):
            commit(storage, 3)
        assert identities(tmp_path) == [(1, 3), (1, 2), (1, 1)]

    def test_large_writes_move_in_pieces_and_are_made_durable_on_the_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = list[int]()
        fsync = os.fsync
        monkeypatch.setattr(
            os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), fsync(file))[1]
        )
        monkeypatch.setattr(folder_module, "SYNC_BYTES", 30)
        told = list[int]()
        calls = Calls(lambda: 60.0)

        def write() -> None:
            LocalFolder(tmp_path).write("file", lambda file: print(file.write(b"x" * 100)))
            told.append(answer_module._here.call.bytes)  # type: ignore[union-attr]

        calls.call(write)
        assert synced[:4] == [30, 60, 90, 100] and told == [100]


class Script:
    """An operation that moves bytes at given looks, and who looks."""

    def __init__(self, moves: list[int], ends: int) -> None:
        """Bytes come at the looks of these numbers; it ends at look `ends`."""
        self._moves, self._ends = moves, ends
        self._look = 0
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)

    def operation(self) -> str:
        while True:
            self._turn.acquire()
            if self._look == self._ends:
                return "answer"
            try:
                moved(1)
            finally:
                self._done.release()

    def wait(self, futures: list[Any], timeout: float) -> Any:
        self._look += 1
        if self._look == self._ends:
            self._turn.release()
            return answer_wait(futures)
        if self._look in self._moves:
            self._turn.release()
            self._done.acquire()
        return answer_wait(futures, timeout=0)

    def end(self) -> None:
        self._look = self._ends
        self._turn.release()


answer_wait = answer_module.wait


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.integers(1, 2 * LOOKS), max_size=6), st.integers(1, 5 * LOOKS))
def test_only_what_moves_nothing_for_the_whole_time_is_silent(gaps: list[int], last: int) -> None:
    moves = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    ends = sum(gaps) + last
    script = Script(moves, ends)
    told = list[int]()
    calls = Calls(lambda: 60.0)
    with pytest.MonkeyPatch.context() as patch, calls.telling(told.append):
        patch.setattr(answer_module, "wait", script.wait)
        try:
            assert calls.call(script.operation) == "answer"
            cut = False
        except SilenceError:
            cut = True
            script.end()
    assert cut == any(gap > LOOKS for gap in [*gaps, last])
    if not cut:
        assert sum(told) >= len(moves) + 1, "each byte, and the answer"


def test_who_listens_hears_true_bytes_and_silence_while_nothing_moves(tmp_path: Path) -> None:
    storage, files = faulty_storage(tmp_path, retry_seconds=0.0)
    storage.open()
    commit(storage, 1)
    found = storage.commits()[0]
    told = list[int]()
    with storage.calls.telling(told.append):
        storage.load(found, "state.pt")
        assert sum(told) >= found.files["state.pt"].size
        told.clear()
        with Server(files, "read", "state.pt"):
            with pytest.raises(SilentError):
                storage.load(found, "state.pt")
            assert not told
