"""Commits in a folder: whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from elastic_trainer.retry import STORAGE_SECONDS_VARIABLE
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.folder import MARKER, HashedFile
from elastic_trainer.store.replica import write_replica
from elastic_trainer.store.storage import FIRST_COMMIT, Storage


def commit(storage: Storage, step: int, content: bytes = b"state" * 9, run: int = 1) -> None:
    def write(file: HashedFile) -> None:
        file.write(content[:7])
        file.write(content[7:])

    cursor = {"epoch": 0, "position": step, "step": step}
    storage.write(step=step, run=run, cursor=cursor, files={"state.pt": write})


def newest(folder: Path) -> int | None:
    found = Storage(folder).newest()
    return found.step if found else None


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORAGE_SECONDS_VARIABLE, "0.2")


class TestStorage:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path / "a" / "b")
        storage.prepare()
        assert storage.newest() is None
        commit(storage, 5, b"hello world")
        found = storage.newest()
        assert found is not None
        assert (found.step, found.run, found.cursor["position"]) == (5, 1, 5)
        assert bytes(storage.load(found, "state.pt")) == b"hello world"
        assert sorted(path.name for path in storage.folder.glob("step-*")) == ["step-5"]

    def test_a_folder_stays_where_it_is_when_the_script_changes_its_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        storage = Storage("commits")
        monkeypatch.chdir(tmp_path / "elsewhere")
        commit(storage, 5)
        found = Storage(tmp_path / "commits").newest()
        assert found is not None and found.step == 5
        assert storage.location == str(tmp_path / "commits")

    def test_that_there_were_commits_is_known_when_all_are_gone(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path, keep=2)
        assert storage.first_commit() is None
        for step in (5, 10, 15, 20):
            commit(storage, step)
        for path in tmp_path.glob("step-*"):
            shutil.rmtree(path)
        assert storage.first_commit() == 5
        (tmp_path / FIRST_COMMIT).write_bytes(b"")  # torn
        assert storage.first_commit() == -1

    def test_a_new_folder_may_be_looked_at_without_making_it_ones_own(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path / "commits")
        assert storage.open(create=False, known=lambda: "a reason to wait") == ""
        assert not (tmp_path / "commits").exists()
        assert storage.open() == storage.open(create=False)

    def test_a_commit_torn_at_any_byte_is_passed_over(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage = Storage(tmp_path)
        storage.prepare()
        commit(storage, 1)
        commit(storage, 2)
        for name in ("state.pt", MARKER):
            path = tmp_path / "step-2" / name
            whole = path.read_bytes()
            for size in range(len(whole)):
                path.write_bytes(whole[:size])
                assert newest(tmp_path) == 1, f"{name} cut to {size} bytes was believed"
            for at in range(len(whole)):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
                assert newest(tmp_path) == 1, f"{name} with bit 0 of byte {at} flipped was believed"
            path.unlink()
            assert newest(tmp_path) == 1, f"a commit without {name} was believed"
            path.write_bytes(whole)
            assert newest(tmp_path) == 2
        assert "passing over" in caplog.text

    @pytest.mark.parametrize("stage", ["mkdir", "write", "fsync", "rename", "marker"])
    def test_a_write_that_fails_at_any_stage_leaves_the_last_commit(
        self, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = Storage(tmp_path)
        storage.prepare()
        commit(storage, 1)

        def full(*_: object, **__: object) -> NoReturn:
            raise OSError(28, "No space left on device", str(tmp_path))

        with monkeypatch.context() as patch:
            match stage:
                case "mkdir":
                    patch.setattr(Path, "mkdir", full)
                case "write":
                    patch.setattr(HashedFile, "write", full)
                case "fsync":
                    patch.setattr(os, "fsync", full)
                case "rename":
                    patch.setattr(Path, "rename", full)
                case _:
                    patch.setattr(Storage, "_write_marker", full)
            with pytest.raises(StorageError, match=r"step 2 can't be committed.*No space left"):
                commit(storage, 2)
        assert newest(tmp_path) == 1
        commit(storage, 2)
        assert newest(tmp_path) == 2

    def test_a_full_disk_is_said_in_its_own_words(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        storage.prepare()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StorageError, match=r"step 1 can't be committed.*File too large"):
                write_replica(
                    storage, step=1, run=1, state={"cursor": {}, "model": torch.zeros(10**6)}
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert newest(tmp_path) is None

    @pytest.mark.process
    def test_sigkill_at_any_time_loses_no_acknowledged_commit(self, tmp_path: Path) -> None:
        code = (
            "import sys; from elastic_trainer.store.storage import Storage\n"
            "storage = Storage(sys.argv[1]); storage.prepare(); first = int(sys.argv[2])\n"
            "for step in range(first, first + 10**6):\n"
            "    content = step.to_bytes(8, 'big') * 50_000\n"
            "    files = {'state.pt': lambda file: file.write(content)}\n"
            "    storage.write(step=step, run=first, cursor={}, files=files)\n"
            "    print(step, flush=True)\n"
        )
        acknowledged = 0
        for kill in range(6):
            command = [sys.executable, "-c", code, str(tmp_path), str(acknowledged + 1)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                acknowledged = int(process.stdout.readline())
                try:
                    process.wait(0.003 * (kill + 1))
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, signal.SIGKILL)
                rest = process.stdout.read().split()
                acknowledged = int(rest[-1]) if rest else acknowledged
            found = Storage(tmp_path).newest()
            assert found is not None
            assert found.step in (acknowledged, acknowledged + 1)  # killed before it could say so
            content = bytes(Storage(tmp_path).load(found, "state.pt"))
            assert content == found.step.to_bytes(8, "big") * 50_000

    def test_a_later_run_wins_over_a_higher_step(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        storage.prepare()
        commit(storage, 9, run=1)
        commit(storage, 7, run=2)
        assert newest(tmp_path) == 7

    def test_a_step_made_again_counts_instead_of_what_was_there(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path)
        storage.prepare()
        commit(storage, 3, b"the run that was rolled back", run=1)
        commit(storage, 3, b"the run that counts", run=2)
        found = storage.newest()
        assert found is not None
        assert bytes(storage.load(found, "state.pt")) == b"the run that counts"

    def test_only_the_newest_are_kept(self, tmp_path: Path) -> None:
        storage = Storage(tmp_path, keep=2)
        storage.prepare()
        for step in (1, 2, 10, 11):
            commit(storage, step)
        assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-10", "step-11"]

    def test_one_commit_is_never_enough(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least 2"):
            Storage(tmp_path, keep=1)

    def test_a_folder_that_can_not_be_written_is_said_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StorageError, match=r"file/commits can't be written: .*[Nn]ot a dir"):
            Storage(tmp_path / "file" / "commits").prepare()
