"""A folder's claim: whose it is, and which of two writers goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tenacity
from elastic_trainer.store.errors import (
    DamagedError,
    OwnershipError,
    SupersededError,
)
from elastic_trainer.store.folder import HashedFile
from elastic_trainer.store.ownership import TRAINING, Job
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.store.faulty_folder import ERRORS, failing, faulty_storage
from tests.elastic_trainer.store.small_commits import commit, newest


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between tries take no time: how long they are is test_retry's business."""
    monkeypatch.setattr(tenacity.wait_random_exponential, "__call__", lambda *_: 0.0)


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
    @pytest.mark.parametrize("begun", [False, True], ids=["before", "during"])
    def test_a_commit_never_gets_into_a_folder_that_took_its_folders_place(
        self, tmp_path: Path, begun: bool
    ) -> None:
        mounted, beneath = tmp_path / "commits", tmp_path / "away"
        storage = Storage(mounted)
        storage.open()
        storage.hold(11, "first")
        commit(storage, 1, run=11)
        written = storage.begin(2)
        mounted.rename(beneath)
        other = Storage(mounted)  # a pod that knows nothing of the first training begins one
        other.open()
        if begun:
            (mounted / written).mkdir()

        def go_on() -> None:
            if begun:
                storage.finish(written, step=2, run=11, cursor={}, files={})
            else:
                commit(storage, 2, run=11)

        with pytest.raises(OwnershipError, match="not the folder that this training began in"):
            go_on()
        assert other.commits() == []
        assert [found.step for found in Storage(beneath).commits()] == [1]

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

        def interrupt(operation: str, _: str) -> None:
            if operation == "renamed":
                files.fault = lambda *_: None
                found.append(second.take_over(0, "second"))

        files.fault = interrupt
        with pytest.raises(SupersededError):
            commit(first, 1, run=1)
        # Seen by the second, all the same: it was there first.
        assert [one.identity for one in found[0][1].commits] == [(1, 1)]

    def test_who_was_taken_over_from_does_not_try_for_long_to_write_what_was_removed(
        self, tmp_path: Path
    ) -> None:
        first, second = Storage(tmp_path), Storage(tmp_path)
        training = first.open()
        first.take_over(0, "first")
        commit(first, 1, run=1)
        second.expect(training)
        tries = []

        def write(file: HashedFile) -> None:
            tries.append(1)
            second.take_over(0, "second")
            commit(second, 2, run=2)  # which tidies up what the first one has begun
            raise FileNotFoundError(2, "its directory is gone")

        with pytest.raises(SupersededError, match="taken over by run 2"):
            first.write(step=2, run=1, cursor={}, files={"state.pt": write})
        assert len(tries) == 1
        assert [found.identity for found in second.commits()] == [(2, 2), (1, 1)]

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
