"""Checkpoints in shared memory, from the training script's side."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from elastic_trainer.agent.workers import WorkerServer
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.checkpoint.model_state import MismatchError
from elastic_trainer.data.audit import verify
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.protocol.message import Committed
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.retry import STORAGE_SECONDS_VARIABLE
from elastic_trainer.store.errors import DamagedError, StorageError
from elastic_trainer.store.persister import Persister, Saved
from elastic_trainer.store.slot import Slot
from elastic_trainer.store.storage import Storage
from torch.utils.data import TensorDataset

from tests.elastic_trainer.store.slot_states import a_state, label
from tests.elastic_trainer.torchrun_job import Job


class SealingLink(WorkerLink):
    """An agent that verifies at once, and stores when it is asked."""

    def __init__(self) -> None:
        super().__init__(None)
        self.stores = True
        self.known = -1
        self.told: list[Saved] = []

    def newest_commit(self, place: str) -> int:
        return self.known

    def saved(
        self,
        path: str,
        step: int,
        savers: int,
        folder: str = "",
        keep: int = 3,
        run: int = 0,
        claim: str = "",
        retry_seconds: float | None = None,
    ) -> None:
        assert Slot(Path(path)).verify() is not None
        self.told.append(Saved(path, step, 0, 0, folder, keep, run, claim, retry_seconds))

    def settle(self, *, storage: bool) -> str:
        if storage and self.stores:
            persister = Persister(lambda *_: None, lambda *_: None)
            done, errors = threading.Event(), list[str]()
            persister.saved(self.told[-1])
            persister.flush(True, lambda error: (errors.append(error), done.set()))
            assert done.wait(20)
            persister.close(5)
            return errors[0]
        return ""


class Script:
    def __init__(
        self,
        folder: Path,
        width: int = 8,
        url: str | None = None,
        *,
        commits: str = "commits",
        known: int = -1,
        **options: Any,
    ) -> None:
        torch.manual_seed(len(list(folder.iterdir())) if folder.exists() else 0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        values = torch.linspace(-1, 1, 150).reshape(50, 3)
        samples = TensorDataset(values, values.sum(1, keepdim=True))
        self.data = ElasticDataset(samples, batch_size=4, epochs=3, group=ProcessGroup())
        self.link = SealingLink()
        self.link.known = known
        slots = folder / "slots"
        slots.mkdir(parents=True, exist_ok=True)
        self.checkpointer = Checkpointer(
            url or folder / commits,
            model=self.model,
            optimizer=self.optimizer,
            data=self.data,
            link=self.link,
            memory=None if url else Memory(slots, self.link),
            **options,
        )

    def train(self, steps: int) -> list[float]:
        for inputs, wanted in self.data:
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(inputs), wanted).backward()
            self.optimizer.step()
            self.checkpointer.step()
            steps -= 1
            if not steps:
                break
        return self.sums

    @property
    def sums(self) -> list[float]:
        moments = [one["exp_avg"] for one in self.optimizer.state.values()]
        return [tensor.double().sum().item() for tensor in (*self.model.parameters(), *moments)]


class TestCheckpointer:
    def test_what_is_in_memory_survives_the_process(self, tmp_path: Path) -> None:
        script = Script(tmp_path, every=2)
        sums = script.train(6)
        assert Storage(tmp_path / "commits").commits() == []
        again = Script(tmp_path, every=1)
        assert (again.data.steps, again.sums) == (6, sums)
        assert again.checkpointer.parent == script.checkpointer.run
        # What was restored is the model's own: training on changes no slot.
        kept = again.train(1)
        again.checkpointer.every = 1000
        again.train(2)
        assert Script(tmp_path).sums == kept

    def test_of_two_trainings_at_once_under_an_agent_the_second_is_refused(
        self, tmp_path: Path
    ) -> None:
        class Linked(SealingLink):
            agent = True

        def make(name: str) -> Checkpointer:
            model, link = torch.nn.Linear(3, 1), Linked()
            return Checkpointer(
                tmp_path / name,
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data=ElasticDataset([0.0] * 8, batch_size=4, epochs=1, group=ProcessGroup()),
                link=link,
                memory=Memory(tmp_path, link),
            )

        generator = make("generator")
        with pytest.raises(ValueError, match=r"commits in .*generator already: expected one"):
            make("critic")
        generator.finish()
        make("critic").finish()

    def test_another_models_checkpoint_is_a_reason_to_give_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(SealingLink, "give_up", lambda _, reason: told.append(reason))
        Script(tmp_path, every=1).train(2)
        with pytest.raises(MismatchError, match=r"step 2.*expected \(9, 3\).*found \(8, 3\)"):
            Script(tmp_path, width=9)
        (reason,) = told
        assert "0.weight: expected (9, 3) float32, found (8, 3) float32" in reason

    def test_a_damaged_newest_costs_a_save(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        script = Script(tmp_path, every=2)
        script.train(6)
        path = Path(script.link.told[-1].path)
        content = bytearray(path.read_bytes())
        content[-10] ^= 1
        path.write_bytes(content)
        assert Script(tmp_path).data.steps == 4
        assert "passing over step 6 in its own memory" in caplog.text

    def test_the_end_is_in_storage(self, tmp_path: Path) -> None:
        script = Script(tmp_path, every=2)
        script.link.round = 57
        sums = script.train(5)
        script.checkpointer.finish()
        commits = Storage(tmp_path / "commits").commits()
        assert [(commit.step, commit.round) for commit in commits] == [(5, 57)]
        for path in (tmp_path / "slots").iterdir():
            path.unlink()
        assert Script(tmp_path).sums == sums

    def test_the_end_is_in_storage_though_its_round_began_with_a_live_state(
        self, tmp_path: Path
    ) -> None:
        script = Script(tmp_path, every=1000)
        sums = script.train(5)
        live = (script.checkpointer.run, 5)
        script.checkpointer.restore(live)  # the round broke after its last step
        script.checkpointer.finish()
        (found,) = Storage(tmp_path / "commits").commits()
        assert found.identity == live
        for path in (tmp_path / "slots").iterdir():
            path.unlink()
        assert Script(tmp_path).sums == sums

    @pytest.mark.parametrize("rounds", [1, 2])
    def test_an_end_that_memory_has_is_brought_to_storage_once(
        self, rounds: int, tmp_path: Path
    ) -> None:
        script = Script(tmp_path, every=5)
        script.train(5)
        live = (script.checkpointer.run, 5)
        for _ in range(rounds):
            script.checkpointer.restore(live)
            script.checkpointer.finish()
            # By the claim of its own round: another process may have taken one since.
            assert script.link.told[-1].run == script.checkpointer.run
        (found,) = Storage(tmp_path / "commits").commits()
        assert found.identity == live

    def test_without_memory_an_end_that_storage_has_is_not_written_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
        script = Script(tmp_path, every=5)
        script.train(5)
        script.checkpointer.restore((script.checkpointer.run, 5))
        script.checkpointer.finish()
        assert [commit.step for commit in Storage(tmp_path / "commits").commits()] == [5]
        script.train(1)
        script.checkpointer.restore((script.checkpointer.run, 6))
        script.checkpointer.finish()
        assert [commit.step for commit in Storage(tmp_path / "commits").commits()] == [6, 5]

    def test_a_new_folder_is_a_new_training(self, tmp_path: Path) -> None:
        Script(tmp_path, every=2).train(4)
        assert Script(tmp_path, commits="others").data.steps == 0
        assert Script(tmp_path).data.steps == 4

    def test_a_folder_that_is_empty_though_memory_knows_its_training_is_not_mounted(
        self, tmp_path: Path
    ) -> None:
        Script(tmp_path, every=2).train(4)
        (tmp_path / "commits").rename(tmp_path / "unmounted")
        (tmp_path / "commits").mkdir()
        impatient = {"storage_patience": timedelta(seconds=0.1)}
        with pytest.raises(StorageError, match=r"memory knows step 4 .*is the volume mounted\?"):
            Script(tmp_path, **impatient)
        # Another volume, where somebody else's training was begun.
        Storage(tmp_path / "commits").open()
        with pytest.raises(StorageError, match=r"knows step 4 of a training.*fresh=True"):
            Script(tmp_path, **impatient)
        assert not list((tmp_path / "commits").glob("step-*"))
        shutil.rmtree(tmp_path / "commits")
        (tmp_path / "unmounted").rename(tmp_path / "commits")
        assert Script(tmp_path).data.steps == 4
        shutil.rmtree(tmp_path / "commits")
        assert Script(tmp_path, fresh=True).data.steps == 0

    def test_an_empty_folder_is_not_new_where_the_jobs_nodes_know_of_its_commits(
        self, tmp_path: Path
    ) -> None:
        commits = tmp_path / "commits"
        commits.mkdir()
        impatient = {"storage_patience": timedelta(seconds=0.1)}
        early = Script(tmp_path, known=40, restore=False, **impatient)
        assert list(commits.iterdir()) == []  # before the round is asked
        words = r"step 40 was committed to it: is the volume mounted\?.*fresh=True"
        with pytest.raises(StorageError, match=words):
            early.checkpointer.restore()
        with pytest.raises(StorageError, match=words):
            Script(tmp_path, known=40, **impatient)
        assert list(commits.iterdir()) == []
        # Another volume, where somebody else's training was begun.
        Storage(commits).open()
        with pytest.raises(StorageError, match=r"holds no commit, but .*step 40 was committed"):
            Script(tmp_path, known=40, **impatient)
        fresh = Script(tmp_path, known=40, fresh=True)
        assert fresh.data.steps == 0
        fresh.train(3)
        fresh.checkpointer.finish()
        assert Script(tmp_path, known=40).data.steps == 3

    def test_a_folder_that_has_lost_all_its_commits_is_not_begun_anew(self, tmp_path: Path) -> None:
        Script(tmp_path, every=2).train(4)
        Script(tmp_path).checkpointer.finish()
        for path in [*(tmp_path / "slots").iterdir()]:
            path.unlink()  # new pods
        for path in (tmp_path / "commits").glob("step-*"):
            shutil.rmtree(path)
        with pytest.raises(StorageError, match=r"FIRST-COMMIT says that step 4 .*fresh=True"):
            Script(tmp_path)
        assert Script(tmp_path, fresh=True).data.steps == 0

    def test_a_folder_that_vanishes_before_the_first_save_is_not_begun_anew(
        self, tmp_path: Path
    ) -> None:
        Script(tmp_path, every=2).train(4)
        Script(tmp_path).checkpointer.finish()
        for path in (tmp_path / "slots").iterdir():
            path.unlink()  # new pods
        assert Script(tmp_path, every=20).data.steps == 4
        (tmp_path / "commits").rename(tmp_path / "unmounted")
        with pytest.raises(StorageError, match=r"memory knows step 4 .*is the volume mounted\?"):
            Script(tmp_path, storage_patience=timedelta(seconds=0.1))
        assert not (tmp_path / "commits").exists()
        (tmp_path / "unmounted").rename(tmp_path / "commits")
        assert Script(tmp_path).data.steps == 4

    def test_too_little_memory_is_no_reason_not_to_train(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = SimpleNamespace(f_bavail=0, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda _: full)
        script = Script(tmp_path, every=2)
        assert "volcano-elastic.io/shared-memory" in caplog.text  # at the start
        script.train(3)
        assert [commit.step for commit in Storage(tmp_path / "commits").commits()] == [2]

    def test_another_model_is_refused_in_words(self, tmp_path: Path) -> None:
        Script(tmp_path, every=2).train(2)
        for stored in (False, True):
            if stored:
                Script(tmp_path).checkpointer.finish()
                for path in (tmp_path / "slots").iterdir():
                    path.unlink()
            with pytest.raises(
                MismatchError,
                match=r"model: 0\.bias: expected \(9,\) float32, found \(8,\) float32; .*1\.weight",
            ):
                Script(tmp_path, width=9)

    def test_steps_between_saves_are_agreed_by_the_clock(self, tmp_path: Path) -> None:
        now = [0.0]
        script = Script(tmp_path, clock=lambda: now[0])
        for _ in script.data:
            now[0] += 0.3
            script.checkpointer.step()
            if script.data.steps == 9:
                break
        assert [saved.step for saved in script.link.told] == [4, 8]

    def test_a_url_is_a_folder_too(self, tmp_path: Path) -> None:
        pytest.importorskip("fsspec")
        for url in ("memory://commits-test", f"file://{tmp_path}/by-url"):
            sums = Script(tmp_path, url=url, every=2).train(4)
            again = Script(tmp_path, url=url, every=1)
            assert (again.data.steps, again.sums) == (4, sums)
            again.train(5)
            storage = again.checkpointer.storage
            assert [commit.step for commit in storage.commits()] == [9, 8, 7]
            newest = storage.commits()[0]
            state = f"{newest.place}/state.pt"
            storage._files.write(state, lambda file: file.write(b"x") and None)
            with pytest.raises(DamagedError, match=r"step-9-.*/state\.pt is damaged"):
                storage.load(newest, "state.pt")
            assert Script(tmp_path, url=url).data.steps == 8


JOB = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import Checkpointer, ElasticDataset

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
net = torch.nn.Linear(8, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(4096, 8)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, epochs=200,
    audit=folder / "audit",
)
with Checkpointer(folder / "commits", model=model, optimizer=optimizer, data=data, every=25) as c:
    with open(folder / "begun", "a") as begun:
        begun.write(f"{data.group.rank} {data.steps}\\n")
    for x, y in data:
        optimizer.zero_grad()
        (data.weight * torch.nn.functional.mse_loss(model(x), y)).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)
        optimizer.step()
        time.sleep(0.01)
        c.step()
        if enough:
            data.epochs = data.cursor.epoch + (data.cursor.position > 0)
"""


def test_a_fresh_coordinator_hears_of_the_round_that_made_what_is_in_memory() -> None:
    told: list[Any] = []
    server = WorkerServer(None, told.append, *[lambda *_: None] * 4)
    server.begin(1)
    server.local.savers = 1
    server._sealed(Saved("slot", 400, 0, 1), replace(label(400, a_state(1)), round=57))
    assert told == [server.local.held] == [Committed(57, 400, in_memory=True)]


@pytest.mark.process
def test_all_workers_killed_go_on_from_memory_under_torchrun(tmp_path: Path) -> None:
    job = Job(tmp_path, JOB)
    try:
        # A commit that is moved away while it is written is tried for so long.
        job.start(0, 1, environment={STORAGE_SECONDS_VARIABLE: "5"})
        told = job.until("a commit", lambda told: told.get("committed_step", -1) >= 50)
        # From now on nothing can come to storage.
        (tmp_path / "commits").rename(tmp_path / "gone")
        (tmp_path / "commits").mkdir()
        (tmp_path / "commits" / "TRAINING").write_bytes((tmp_path / "gone/TRAINING").read_bytes())
        told = job.until(
            "a commit", lambda now: now["committed_step"] >= told["committed_step"] + 50
        )
        for name in list((tmp_path / "commits").glob("step-*")):
            name.rename(tmp_path / f"gone-{name.name}")
        for (pid,) in told["pids"].values():
            os.kill(pid, signal.SIGKILL)
        job.stepping(2, after_round=told["round"])
        begun = [int(line.split()[1]) for line in (tmp_path / "begun").read_text().splitlines()]
        assert min(begun[-2:]) >= told["committed_step"], job.logs()
        (tmp_path / "enough").touch()
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
        newest = Storage(tmp_path / "commits").newest()
        assert newest is not None and newest.step > told["committed_step"]
        epochs = newest.cursor["epoch"]
        assert verify(tmp_path / "audit", 4096, max(1, epochs)).ok
    finally:
        job.close()
