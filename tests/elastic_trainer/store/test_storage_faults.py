"""A storage that can't be read or written for a while: nothing is lost, nothing older believed."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tenacity
from elastic_trainer.store.content import read_content
from elastic_trainer.store.errors import (
    DamagedError,
    OwnershipError,
    StorageError,
    UnavailableError,
)
from elastic_trainer.store.folder import MARKER, FileRecord
from elastic_trainer.store.ownership import TRAINING
from elastic_trainer.store.retention import Condition, Found, removable
from elastic_trainer.store.storage import ABANDONED_SECONDS, FIRST_COMMIT, Storage, Survey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.store.faulty_folder import (
    ERRORS,
    FaultyFolder,
    failing,
    faulty_storage,
)
from tests.elastic_trainer.store.small_commits import commit, newest, steps
from tests.examples import examples

PASSING = pytest.mark.parametrize("error", ["EIO", "ESTALE", "EACCES", "time-out", "503"])


@contextmanager
def misreading(files: FaultyFolder, operation: str, *, times: int) -> Iterator[None]:
    """Within this, so many calls of `operation` find state.pt other than it is, each in its way."""
    honest = getattr(files, operation)
    count = itertools.count(1)

    def misread(name: str) -> Any:
        found = honest(name)
        if not name.endswith("state.pt") or (number := next(count)) > times:
            return found
        wrong = b"wrong %d" % number
        if operation == "load":
            return read_content(io.BytesIO(wrong))
        return FileRecord(len(wrong), wrong.hex())

    setattr(files, operation, misread)
    try:
        yield
    finally:
        delattr(files, operation)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between tries take no time: how long they are is test_retry's business."""
    monkeypatch.setattr(tenacity.wait_random_exponential, "__call__", lambda *_: 0.0)


class TestReading:
    @PASSING
    @pytest.mark.parametrize(
        ("operation", "name"),
        [("list", ""), ("read", MARKER), ("read", "step-2/" + MARKER), ("read", "state.pt")],
    )
    def test_a_storage_that_cannot_be_read_is_never_taken_for_an_older_one_or_none(
        self, tmp_path: Path, error: str, operation: str, name: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.05)
        storage.open()
        commit(storage, 1)
        commit(storage, 2)
        with (
            failing(files, operation, error, name=name),
            pytest.raises(UnavailableError, match="can't be read"),
        ):
            storage.newest()
        assert newest(storage) == 2

    @PASSING
    @pytest.mark.parametrize("operation", ["list", "read"])
    def test_a_hiccup_is_waited_for_and_said_once(
        self, tmp_path: Path, error: str, operation: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage, files = faulty_storage(tmp_path)
        storage.open()
        commit(storage, 1)
        commit(storage, 2)
        with failing(files, operation, error, times=3):
            assert newest(storage) == 2
        assert files.raised == 3
        (record,) = caplog.records
        assert "trying again for up to 60 s" in record.getMessage()

    @pytest.mark.parametrize("name", [MARKER, "state.pt"])
    def test_what_a_listing_shows_and_reading_does_not_is_waited_for(
        self, tmp_path: Path, name: str
    ) -> None:
        storage, files = faulty_storage(tmp_path)
        commit_folder = tmp_path / "step-2"
        storage.open()
        commit(storage, 1)
        commit(storage, 2)
        with failing(files, "read", "ENOENT", name=f"step-2/{name}", times=4):
            assert newest(storage) == 2
        # Whereas what no listing shows isn't there.
        (commit_folder / name).unlink()
        assert newest(storage) == 1

    def test_a_folder_that_vanishes_is_waited_for_and_never_made_anew(self, tmp_path: Path) -> None:
        folder, gone = tmp_path / "commits", tmp_path / "gone"
        storage, files = faulty_storage(folder)
        storage.open()
        commit(storage, 1)
        folder.rename(gone)
        calls = [0]

        def come_back(*_: str) -> None:
            calls[0] += 1
            if calls[0] == 4:
                gone.rename(folder)

        files.fault = come_back
        commit(storage, 2)
        files.fault = lambda *_: None
        assert steps(folder) == [2, 1]
        # An unmounted volume is an empty folder.
        folder.rename(gone)
        folder.mkdir()
        with storage.patience(0.05):
            with pytest.raises(UnavailableError, match="TRAINING is gone"):
                storage.newest()
            with pytest.raises(UnavailableError, match="TRAINING is gone"):
                commit(storage, 3)
            with pytest.raises(UnavailableError, match="TRAINING is gone"):
                storage.prepare()
        assert os.listdir(folder) == []

    def test_an_adopted_folder_is_looked_at_before_anything_is_written(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "commits"
        folder.mkdir()
        storage = Storage(folder, retry_seconds=0.05)
        storage.adopt("the training of live peers")
        storage.hold(7, "token")
        with pytest.raises(UnavailableError, match="TRAINING can't be read"):
            commit(storage, 1)  # its volume isn't mounted
        assert os.listdir(folder) == []
        Storage(folder).open()
        with pytest.raises(OwnershipError, match="not the folder that this training began in"):
            commit(storage, 1)
        assert os.listdir(folder) == [TRAINING]

    def test_a_file_cut_off_or_changed_is_damaged_and_not_waited_for(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        storage.open()
        commit(storage, 1)
        commit(storage, 2)
        found = storage.commits()[0]
        os.truncate(tmp_path / "step-2/state.pt", 7)
        with pytest.raises(DamagedError, match=r"expected 100 bytes .* found 7"):
            storage.load(found, "state.pt")
        os.truncate(tmp_path / "step-2" / MARKER, 7)
        assert newest(storage) == 1


class TestWriting:
    @pytest.mark.parametrize("error", sorted(ERRORS))
    @pytest.mark.parametrize(
        "operation",
        ["list", "begin", "write", "written", "rename", "renamed", "create", "created"],
    )
    def test_a_hiccup_at_any_operation_costs_no_commit(
        self, tmp_path: Path, operation: str, error: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, keep=2)
        storage.open()
        commit(storage, 1)
        storage.hold(7, "token")
        with failing(files, operation, error, times=2):
            commit(storage, 2, run=7)
        assert files.raised == 2
        assert steps(tmp_path) == [2, 1]
        assert sorted(os.listdir(tmp_path)) == [
            "EPOCH-7",
            FIRST_COMMIT,
            TRAINING,
            "step-1",
            "step-2",
        ]

    @pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EROFS"])
    @pytest.mark.parametrize("operation", ["begin", "write", "rename", "written"])
    def test_a_storage_that_stays_so_refuses_the_commit_and_keeps_the_others(
        self, tmp_path: Path, operation: str, error: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.05)
        storage.open()
        commit(storage, 1)
        reason = ERRORS[error]().strerror
        with (
            failing(files, operation, error),
            pytest.raises(UnavailableError, match=rf"step 2 can't be committed.*{reason}"),
        ):
            commit(storage, 2)
        assert newest(storage) == 1
        commit(storage, 3)
        assert newest(storage) == 3

    def test_an_fsync_that_fails_is_no_commit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = Storage(tmp_path, retry_seconds=0.0)
        storage.open()
        commit(storage, 1)
        sync = os.fsync

        def fail(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(UnavailableError, match="Input/output error"):
            commit(storage, 2)
        monkeypatch.setattr(os, "fsync", sync)
        assert newest(storage) == 1


class TestMarkers:
    def test_a_commit_that_has_lost_its_marker_is_told_from_none(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        commit(storage, 1)
        (tmp_path / "step-1" / MARKER).unlink()
        assert storage.commits() == []
        (reason,) = storage.survey().damaged
        assert f"{tmp_path}/step-1/{MARKER} is missing: found state.pt" in reason

    @pytest.mark.parametrize(
        ("operation", "name"),
        [
            ("begin", ""),
            ("write", "state.pt"),
            ("written", "state.pt"),
            ("write", MARKER),
            ("written", MARKER),
            ("rename", ""),
        ],
    )
    def test_a_first_commit_that_is_interrupted_is_none(
        self, tmp_path: Path, operation: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage, files = faulty_storage(tmp_path, retry_seconds=0.0)
        monkeypatch.setattr(storage, "abandon", lambda _: None)  # as where the process ends
        with failing(files, operation, "EIO", name=name), pytest.raises(UnavailableError):
            commit(storage, 1)
        assert Storage(tmp_path).survey() == Survey()
        commit(storage, 2)
        assert steps(tmp_path) == [2]

    def test_a_removal_that_is_interrupted_leaves_nothing_that_looks_damaged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage, files = faulty_storage(tmp_path)
        commit(storage, 1)

        def interrupted(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(OSError, match="Input/output"):
            files.remove("step-1")
        assert Storage(tmp_path).survey() == Survey()


class TestRetention:
    @PASSING
    def test_a_good_commit_whose_marker_cannot_be_read_now_stays(
        self, tmp_path: Path, error: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, keep=2)
        storage.open()
        storage.take_over(0, "token")  # whoever has the claim removes what others left at once
        for step in (1, 2):
            commit(storage, step)
        with failing(files, "read", error, name=f"step-2/{MARKER}"):
            for step in (3, 4, 5):
                commit(storage, step)
        assert sorted(os.listdir(tmp_path)) == [
            "EPOCH-1",
            FIRST_COMMIT,
            TRAINING,
            "step-2",
            "step-4",
            "step-5",
        ]
        assert newest(storage) == 5

    def test_one_wrong_read_is_no_damage(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage, files = faulty_storage(tmp_path)
        for step in (1, 2):
            commit(storage, step)
        (last, _) = storage.commits()
        right = (tmp_path / "step-2" / "state.pt").read_bytes()
        for look in ("record", "load"):
            with misreading(files, look, times=1):
                assert newest(storage) == 2
                assert bytes(storage.load(last, "state.pt")) == right
        assert caplog.text.count("was read wrongly, and is right") == 2
        assert not (tmp_path / "step-2" / "DAMAGED").exists()
        # Nor is one that never reads the same: neither it nor an older commit is used.
        with (
            misreading(files, "record", times=10**9),
            storage.patience(0.05),
            pytest.raises(
                UnavailableError,
                match=r"step-2/state\.pt can't be read: it reads differently each time",
            ),
        ):
            newest(storage)
        assert not (tmp_path / "step-2" / "DAMAGED").exists()

    @PASSING
    def test_what_cannot_be_deleted_now_is_whole_and_goes_later(
        self, tmp_path: Path, error: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, keep=2)
        storage.open()
        with failing(files, "delete", error):
            for step in (1, 2, 3, 4):
                commit(storage, step)
        assert steps(tmp_path) == [4, 3, 2, 1]
        commit(storage, 5)
        assert steps(tmp_path) == [5, 4]

    def test_what_has_lost_its_marker_or_never_was_a_commit_stays(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path, keep=2)
        storage.open()
        storage.take_over(0, "token")
        commit(storage, 1)
        (tmp_path / "step-1" / MARKER).unlink()
        (tmp_path / "step-100").mkdir()
        (tmp_path / "step-100" / "model.safetensors").write_bytes(b"somebody's own")
        for step in (2, 3, 4, 5):
            commit(storage, step)
        assert [path.name for path in sorted(tmp_path.glob("step-*/*"))] == [
            "state.pt",
            "model.safetensors",
            *[MARKER, "state.pt"] * 2,
        ]
        assert steps(tmp_path) == [5, 4]

    def test_what_another_writes_is_left_to_it_whatever_clocks_say(self, tmp_path: Path) -> None:
        now = [0.0]
        storage = Storage(tmp_path, keep=2, clock=lambda: now[0])
        storage.open()
        theirs = [
            ".writing-9-0123456789abcdef0123456789abcdef-step-120",  # of a later run
            ".writing-0-0123456789abcdef0123456789abcdef-probe",
            ".writing-7-step-120",  # of an older version
        ]
        replaced = ".writing-3-0123456789abcdef0123456789abcdef-step-120"
        for name in (*theirs, replaced):
            (tmp_path / name).mkdir()
        storage.hold(5, "token")
        for step in (1, 2, 3):
            commit(storage, step, run=5)
        there = os.listdir(tmp_path)
        assert set(theirs) <= set(there) and replaced not in there
        long_ago = time.time() - 48 * 3600  # their clock, or this one, has jumped
        for name in theirs:
            os.utime(tmp_path / name, (long_ago, long_ago))
        commit(storage, 4, run=5)
        now[0] += ABANDONED_SECONDS - 1
        commit(storage, 5, run=5)
        assert set(theirs) <= set(os.listdir(tmp_path))
        os.utime(tmp_path / theirs[1])  # somebody writes there
        now[0] += 2
        commit(storage, 6, run=5)
        assert {name for name in os.listdir(tmp_path) if name.startswith(".")} == set(theirs[:2])
        now[0] += ABANDONED_SECONDS + 1
        commit(storage, 7, run=5)
        assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == theirs[:1]

    found = st.builds(
        Found, st.sampled_from(Condition), st.tuples(st.integers(1, 3), st.integers(1, 9))
    )

    @given(st.dictionaries(st.text(min_size=1, max_size=3), found), st.integers(2, 4))
    def test_the_newest_and_the_unreadable_stay(self, found: dict[str, Found], keep: int) -> None:
        gone = removable(found, keep)
        complete = [n for n, one in found.items() if one.condition is Condition.COMPLETE]
        kept = [name for name in complete if name not in gone]
        assert len(kept) == min(keep, len(complete))
        assert all(
            found[old].identity <= found[new].identity
            for old in gone
            for new in kept
            if found[old].condition is Condition.COMPLETE
        )
        stay = (Condition.UNREADABLE, Condition.UNMARKED)
        assert not any(found[name].condition in stay for name in gone)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.just(""), st.integers(0, 0)),
        st.tuples(st.just("restart"), st.just(""), st.integers(0, 0)),
        st.tuples(
            st.sampled_from(
                [
                    "list",
                    "read",
                    "begin",
                    "write",
                    "written",
                    "rename",
                    "renamed",
                    "create",
                    "created",
                    "delete",
                ]
            ),
            st.sampled_from(sorted(ERRORS)),
            st.integers(1, 12),
        ),
    ),
    max_size=40,
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ACTIONS)
def test_no_sequence_of_faults_saves_and_restarts_loses_a_commit(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("commits")
    storage, files = faulty_storage(folder, keep=2, retry_seconds=0.002)
    storage.open()
    run, step = storage.take_over(0, "0")[0].run, 0
    acknowledged: tuple[int, int] | None = None
    for number, (action, error, times) in enumerate(actions):
        if action == "save":
            step += 1
            try:
                commit(storage, step, run=run)
                acknowledged = (run, step)
            except StorageError:
                pass
        elif action == "restart":
            storage, after = faulty_storage(folder, keep=2, retry_seconds=0.002)
            after.fault = files.fault
            files = after
            while True:  # as the pods' restart policy does
                try:
                    storage.open()
                    claim, survey = storage.take_over(0, str(number))
                    break
                except UnavailableError:
                    assert files.raised
            run = claim.run
            found = storage.newest() if survey.commits else None
            identity = None if found is None else found.identity
            # At least what was acknowledged; more where the answer alone was lost.
            assert acknowledged is None or (identity is not None and identity >= acknowledged)
            step = 0 if found is None else found.step
        else:
            left = [times]

            def fault(
                called: str, _: str, action: str = action, error: str = error, left: Any = left
            ) -> OSError | None:
                if called != action or not left[0]:
                    return None
                left[0] -= 1
                return ERRORS[error]()

            files.fault = fault
    files.fault = lambda *_: None
    found = storage.newest()
    assert acknowledged is None or (found is not None and found.identity >= acknowledged)
