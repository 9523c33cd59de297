"""A storage that can't be read or written for a while: nothing is lost, nothing older believed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import tenacity
from elastic_trainer.store.errors import (
    DamagedError,
    OwnershipError,
    StorageError,
    SupersededError,
    UnavailableError,
)
from elastic_trainer.store.folder import MARKER, HashedFile
from elastic_trainer.store.ownership import TRAINING, Job
from elastic_trainer.store.retention import Condition, Found, removable
from elastic_trainer.store.storage import ABANDONED_SECONDS, Storage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.store.faulty_folder import ERRORS, failing, faulty_storage

PASSING = pytest.mark.parametrize("error", ["EIO", "ESTALE", "EACCES", "time-out", "503"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between tries take no time: how long they are is test_retry's business."""
    monkeypatch.setattr(tenacity.wait_random_exponential, "__call__", lambda *_: 0.0)


def commit(storage: Storage, step: int, run: int = 1) -> None:
    def write(file: HashedFile) -> None:
        file.write(b"%d" % step * 100)

    storage.write(step=step, run=run, cursor={"step": step}, files={"state.pt": write})


def steps(folder: Path) -> list[int]:
    return [found.step for found in Storage(folder).commits()]


def newest(storage: Storage) -> int | None:
    found = storage.newest()
    return None if found is None else found.step


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
            storage.read(found, "state.pt")
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
        assert sorted(os.listdir(tmp_path)) == ["EPOCH-7", TRAINING, "step-1", "step-2"]

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


class TestRetention:
    @PASSING
    def test_a_good_commit_whose_marker_cannot_be_read_now_stays(
        self, tmp_path: Path, error: str
    ) -> None:
        storage, files = faulty_storage(tmp_path, keep=2)
        storage.open()
        for step in (1, 2):
            commit(storage, step)
        with failing(files, "read", error, name=f"step-2/{MARKER}"):
            for step in (3, 4, 5):
                commit(storage, step)
        assert sorted(os.listdir(tmp_path)) == [TRAINING, "step-2", "step-4", "step-5"]
        assert newest(storage) == 5

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
        assert not any(found[name].condition is Condition.UNREADABLE for name in gone)


class TestOwnership:
    MINE, OTHERS = Job("uid-1", "team/a"), Job("uid-2", "team/b")

    def test_another_jobs_folder_is_refused_unless_it_is_to_be_continued(
        self, tmp_path: Path
    ) -> None:
        training = Storage(tmp_path).open(self.OTHERS)
        expected = (
            r"belongs to job team/b \(uid-2\), this is team/a \(uid-1\).*"
            r'resume_from="uid-2" or resume_from="team/b", which holds for jobs created again'
        )
        for resume_from in ("", "uid-3"):
            with pytest.raises(OwnershipError, match=expected):
                Storage(tmp_path).open(self.MINE, resume_from)
        with pytest.raises(OwnershipError, match="this is no job"):
            Storage(tmp_path).open()
        for resume_from in ("uid-2", "team/b"):
            storage = Storage(tmp_path)
            assert storage.open(self.MINE, resume_from) == training
        storage.own(self.MINE)
        assert Storage(tmp_path).open(self.MINE) == training
        with pytest.raises(OwnershipError):
            Storage(tmp_path).open(self.OTHERS)

    def test_a_later_job_of_the_same_name_is_another(self, tmp_path: Path) -> None:
        Storage(tmp_path).open(Job("uid-1", "team/a"))
        with pytest.raises(OwnershipError):
            Storage(tmp_path).open(Job("uid-2", "team/a"))
        assert Storage(tmp_path).open(Job("", "team/a"))  # under another rendezvous back end

    def test_a_folder_of_an_older_version_becomes_the_jobs_that_uses_it(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / TRAINING).write_text("0123456789abcdef0123456789abcdef")
        storage = Storage(tmp_path)
        assert storage.open(self.MINE) == "0123456789abcdef0123456789abcdef"
        storage.own(self.MINE)
        assert Storage(tmp_path).open(self.MINE) == "0123456789abcdef0123456789abcdef"
        with pytest.raises(OwnershipError):
            Storage(tmp_path).open(self.OTHERS)

    def test_a_training_that_another_pod_is_about_to_write_is_waited_for(
        self, tmp_path: Path
    ) -> None:
        drawn = Storage(tmp_path).open(self.MINE)
        content = (tmp_path / TRAINING).read_bytes()
        (tmp_path / TRAINING).write_bytes(b"")  # made where there are no links
        storage, files = faulty_storage(tmp_path)
        reads: list[str] = []

        def write_at_last(operation: str, name: str) -> None:
            if (operation, name) == ("read", TRAINING):
                reads.append(name)
                if len(reads) == 2:
                    (tmp_path / TRAINING).write_bytes(content)

        files.fault = write_at_last
        assert storage.open(self.MINE) == drawn

    def test_what_is_no_training_is_said(self, tmp_path: Path) -> None:
        (tmp_path / TRAINING).write_text('{"training": "cut o')
        with pytest.raises(DamagedError, match="TRAINING is damaged: expected a training's id"):
            Storage(tmp_path).open(self.MINE)

    def test_outside_a_job_torchruns_own_ids_do_not_count(self) -> None:
        assert not Job.from_environment({"TORCHELASTIC_RUN_ID": "drawn"})
        inside = {"VOLCANO_ELASTIC_AGENT_SOCKET": "@a", "TORCHELASTIC_RUN_ID": "given"}
        assert Job.from_environment(inside).uid == "given"
        assert not Job.from_environment(inside | {"TORCHELASTIC_RUN_ID": "none"})
        operators = {"PET_RDZV_ID": "uid", "VOLCANO_ELASTIC_JOB": "team/a"}
        assert Job.from_environment(operators) == Job("uid", "team/a")


def folders(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "local"), f"memory://{tmp_path}", f"file://{tmp_path}/by-url"]


class TestClaims:
    @pytest.mark.parametrize("kind", range(3))
    def test_of_two_writers_the_one_with_the_lower_claim_stops(
        self, tmp_path: Path, kind: int
    ) -> None:
        folder = folders(tmp_path)[kind]
        first, second = Storage(folder), Storage(folder)
        training = first.open()
        claim, survey = first.take_over(10, "first")
        assert (claim.run, survey.commits) == (11, ())
        commit(first, 1, run=11)
        assert second.open() == training
        claim, survey = second.take_over(5, "second")
        assert claim.run == 12
        assert [found.identity for found in survey.commits] == [(11, 1)]
        with pytest.raises(SupersededError, match=r"taken over by run 12 on .*run 11 .*stops"):
            commit(first, 2, run=11)
        commit(second, 2, run=12)
        assert [found.identity for found in second.commits()] == [(12, 2), (11, 1)]
        again = Storage(folder)  # the agent, for the worker
        again.expect(training)
        again.hold(12, "second")
        commit(again, 3, run=12)
        third = Storage(folder)
        third.hold(12, "third")
        with pytest.raises(SupersededError, match="taken over by run 12"):
            commit(third, 4, run=12)

    def test_a_claim_taken_while_a_commit_is_published_leaves_it_unacknowledged(
        self, tmp_path: Path
    ) -> None:
        first, files = faulty_storage(tmp_path)
        first.open()
        first.take_over(0, "first")
        second = Storage(tmp_path)
        second.open()
        found: list[Any] = []

        def interrupt(operation: str, name: str) -> None:
            if operation == "written" and name.endswith(MARKER):
                files.fault = lambda *_: None
                found.append(second.take_over(0, "second"))

        files.fault = interrupt
        with pytest.raises(SupersededError):
            commit(first, 1, run=1)
        # Seen by the second, all the same: it was there first.
        assert [one.identity for one in found[0][1].commits] == [(1, 1)]

    @pytest.mark.parametrize("tidies", [False, True])
    def test_a_try_that_comes_late_never_takes_the_place_of_anothers_commit(
        self, tmp_path: Path, tidies: bool
    ) -> None:
        first, files = faulty_storage(tmp_path, retry_seconds=0.3)
        first.open()
        first.take_over(0, "first")
        second, theirs = faulty_storage(tmp_path)
        second.open()

        def interrupt(operation: str, _: str) -> OSError | None:
            if operation != "rename":
                return None
            files.fault = lambda *_: None
            second.take_over(0, "second")
            with failing(theirs, "delete", "EIO", times=0 if tidies else 10**9):
                commit(second, 5, run=2)
            return ERRORS["EIO"]()

        files.fault = interrupt
        with pytest.raises(SupersededError):
            commit(first, 5, run=1)
        found = second.newest()
        assert found is not None and found.identity == (2, 5)

    def test_two_that_publish_for_one_run_do_not_tidy_each_others_work_away(
        self, tmp_path: Path
    ) -> None:
        rank, agent = Storage(tmp_path, keep=2), Storage(tmp_path, keep=2)
        rank.open()
        rank.take_over(6, "token")
        agent.hold(7, "token")
        for step in (1, 2):
            commit(agent, step, run=7)
        written = rank.begin(4)
        record = rank.write_file(f"{written}/state.pt", lambda file: file.write(b"state") and None)
        commit(agent, 3, run=7)
        rank.finish(written, step=4, run=7, cursor={}, files={"state.pt": record})
        assert newest(rank) == 4

    def test_claims_do_not_pile_up(self, tmp_path: Path) -> None:
        for step in range(1, 6):
            storage = Storage(tmp_path)
            storage.open()
            claim, _ = storage.take_over(0, "token")
            commit(storage, step, run=claim.run)
        assert [name for name in os.listdir(tmp_path) if name.startswith("EPOCH")] == ["EPOCH-5"]


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
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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
