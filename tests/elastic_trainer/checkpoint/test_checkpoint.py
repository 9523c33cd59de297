"""Checkpointer: what is saved, restored and told, and when."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.checkpoint.recovery import Available
from elastic_trainer.data.audit import verify
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.link.message import StopAt
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store import owned_folder
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.ownership import TRAINING, Training
from elastic_trainer.store.storage import Storage
from torch.utils.data import TensorDataset

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.store.faulty_store import FaultyStore
from tests.elastic_trainer.store.stuck_calls import StuckCalls
from tests.elastic_trainer.torch_process import TorchProcess, module
from tests.elastic_trainer.torchrun_job import PATIENCE

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.py"
SAMPLES, EPOCHS = 50, 3


class Script:
    """A small training, as a script would have it."""

    def __init__(self, folder: Path, to: str = "", **given: object) -> None:
        torch.manual_seed(4)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        values = torch.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3)
        self.data = ElasticDataset(
            TensorDataset(values, values.sum(1, keepdim=True)),
            batch_size=4,
            epochs=EPOCHS,
            audit=folder / "audit",
            group=ProcessGroup(),
        )
        self.checkpointer = Checkpointer(
            to or folder,
            model=self.model,
            optimizer=self.optimizer,
            data=self.data,
            **given,  # type: ignore[arg-type]
        )

    def train(self, steps: int = 10**6) -> None:
        """Stops after so many steps as if killed: no last commit."""
        for inputs, wanted in self.data:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(inputs), wanted)
            (self.data.weight * loss).backward()
            self.optimizer.step()
            self.checkpointer.step()
            steps -= 1
            if not steps:
                return
        self.checkpointer.finish()

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


class Fenced(Exception):
    pass


class AgentLink(WorkerLink):
    """An agent that gives one order, at one step, and notes what it is told."""

    def __init__(self, order: Order, at: int) -> None:
        super().__init__(None)
        self.order, self.at = order, at
        self.commit = order is Order.LEAVE
        """At a fence, all commit to storage."""
        self.noted: list[tuple[str, int]] = []

    def boundary(self, step: int, samples: int = 0, waited: float = 0.0) -> Order:
        self.told = StopAt(1, step, self.order is Order.LEAVE, self.commit)
        return self.order if step == self.at else Order.GO

    def wait_at_fence(self, step: int, fence: int) -> bool:
        return True

    def committed(self, step: int, round_: int = 0, place: str = "", size: int = 0) -> None:
        assert size > 0, "bytes of its files"
        self.noted.append(("committed", step))

    def fenced(self, step: int, order: Order) -> NoReturn:
        self.noted.append((f"fenced {order.value}", step))
        raise Fenced

    def finished(self) -> None:
        self.noted.append(("finished", -1))


class TestCheckpointer:
    def test_killed_and_restarted_training_is_bit_for_bit_the_undisturbed_one(
        self, tmp_path: Path
    ) -> None:
        undisturbed = Script(tmp_path / "undisturbed")
        undisturbed.train()
        for steps in (1, 7, 5, 13, 2):
            Script(tmp_path / "killed", every=3).train(steps)
        killed = Script(tmp_path / "killed", every=3)
        # Lives of 1, 7, 5, 13 and 2 steps, each going on from the last multiple of three.
        assert killed.data.steps == 21
        killed.train()
        for one, other in zip(undisturbed.parameters, killed.parameters, strict=True):
            assert torch.equal(one, other)
        report = verify(tmp_path / "killed" / "audit", SAMPLES, EPOCHS)
        assert (report.ok, report.runs) == (True, 6)
        assert report.undone > 0

    def test_a_clock_that_goes_back_makes_no_run_older_than_the_one_before(
        self, tmp_path: Path
    ) -> None:
        Script(tmp_path, every=1, wall=lambda: 1000.0).train(2)
        times = [2000.0]
        script = Script(tmp_path, every=1, wall=lambda: times[0])
        checkpointer, before = script.checkpointer, script.checkpointer.run
        times[0] = 500.0
        # The next round in the same process, which has made no step of its own yet.
        checkpointer.restore((checkpointer.parent, script.data.steps))
        assert checkpointer.run > before
        script.train(1)
        assert Storage(tmp_path).commits()[0].identity == (checkpointer.run, 3)

    def test_a_run_is_newer_than_one_that_others_began_and_left_no_trace_of(
        self, tmp_path: Path
    ) -> None:
        """Clocks went back, and memory is gone: what the job's nodes know is all there is."""
        script = Script(tmp_path, every=1, wall=lambda: 1000.0)
        checkpointer = script.checkpointer
        checkpointer.link.last_run = 5000
        checkpointer.restore((checkpointer.parent, script.data.steps))
        assert checkpointer.run == 5001

    def test_pods_that_made_a_folder_at_once_agree_on_the_last_one_to_make_it(
        self, tmp_path: Path
    ) -> None:
        last = Training("f" * 32)

        class OtherMadeItToo(ProcessGroup):
            """Rank 0 of two, whose peer wrote its own TRAINING over this one's."""

            def gather(self, value: Any) -> list[Any]:
                (tmp_path / TRAINING).write_bytes(last.encode())
                if isinstance(value, Available):
                    return [value, replace(value, training=last.id)]
                if isinstance(value, tuple) and isinstance(value[0], Available):
                    return [value, (replace(value[0], training=last.id), None)]
                return [value]

        script = Script(tmp_path, restore=False)
        script.data.regroup(OtherMadeItToo())
        script.checkpointer.restore()
        script.train(1)
        script.checkpointer.commit(stored=True)
        assert Storage(tmp_path).open() == last.id

    def test_a_storage_that_is_silent_holds_training_up_once_and_fails_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(owned_folder, "SLOW_SECONDS", 2.0)
        script = Script(tmp_path, every=1, storage_patience=timedelta(0))
        script.train(2)
        server_returns, sync = threading.Event(), os.fsync

        def silent(descriptor: int) -> None:
            if threading.current_thread().name == "ask-storage":
                calls.stay(server_returns)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", silent)
        try:
            with StuckCalls() as calls:
                script.train(4)
                assert caplog.text.count("going on without this commit") == 1
                with pytest.raises(StorageError, match="no answer for 2 s, an earlier"):
                    script.checkpointer.finish()
            stuck = [one for one in threading.enumerate() if one.name == "ask-storage"]
        finally:
            server_returns.set()
        for thread in stuck:
            thread.join()
        assert [commit.step for commit in Storage(tmp_path).commits()] == [2, 1]

    def test_a_damaged_commit_costs_steps_but_no_sample(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        Script(tmp_path, every=4).train(9)
        state = tmp_path / "step-8" / "state.pt"
        content = bytearray(state.read_bytes())
        content[len(content) // 2] ^= 4
        state.write_bytes(content)
        script = Script(tmp_path)
        assert script.data.steps == 4
        assert "step-8" in caplog.text
        script.train()
        assert verify(tmp_path / "audit", SAMPLES, EPOCHS).ok

    def test_commits_that_lost_their_markers_are_begun_anew_where_asked_and_stay(
        self, tmp_path: Path
    ) -> None:
        Script(tmp_path, every=2).train(6)
        for path in tmp_path.glob("step-*/COMMITTED"):
            path.unlink()
        with pytest.raises(StorageError, match=r"step-6/COMMITTED is missing: .*pass fresh=True"):
            Script(tmp_path)
        fresh = Script(tmp_path, every=2, fresh=True)
        assert fresh.data.steps == 0
        fresh.train(10)
        assert {"step-2", "step-4", "step-6"} <= {path.name for path in tmp_path.iterdir()}
        assert Script(tmp_path).data.steps == 10

    def test_a_damaged_commit_takes_no_good_ones_place(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        Script(tmp_path, every=4, keep=2).train(9)
        state = tmp_path / "step-8" / "state.pt"
        state.write_bytes(state.read_bytes()[:-1])
        script = Script(tmp_path, every=5, keep=2)
        assert script.data.steps == 4
        (warning,) = [one for one in caplog.messages if "passing over" in one]
        assert f"{tmp_path}/step-8/state.pt is damaged" in warning
        script.train(6)  # the commit of step 9
        assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-4", "step-9"]

    def test_what_is_live_is_resumed_without_a_look_at_storage(self, tmp_path: Path) -> None:
        FaultyStore.forget()
        script = Script(tmp_path, to="faulty://bucket/live", every=1000)
        assert FaultyStore.calls["list"]
        script.train(3)
        FaultyStore.calls.clear()
        FaultyStore.fault = staticmethod(lambda *_: OSError(5, "asked while all is live"))
        script.checkpointer.restore((script.checkpointer.run, script.data.steps))
        assert script.data.steps == 3
        script.train(2)
        assert not FaultyStore.calls
        FaultyStore.forget()

    @pytest.mark.parametrize("order", [Order.FENCE, Order.LEAVE])
    def test_a_fence_commits_before_it_is_reached(self, tmp_path: Path, order: Order) -> None:
        link = AgentLink(order, at=5)
        with pytest.raises(Fenced):
            Script(tmp_path, link=link).train()
        assert link.noted == [("committed", 5), (f"fenced {order.value}", 5)]
        assert Script(tmp_path).data.steps == 5

    @pytest.mark.parametrize("commit", [False, True])
    def test_a_fence_waits_for_storage_where_too_few_stay(
        self, tmp_path: Path, commit: bool
    ) -> None:
        link = AgentLink(Order.FENCE, at=2)
        link.commit = commit
        script = Script(tmp_path, link=link)
        stored: list[bool] = []
        script.checkpointer.commit = lambda **given: stored.append(given["stored"])  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            script.train()
        assert stored == [commit]

    def test_the_end_is_committed_then_told(self, tmp_path: Path) -> None:
        link = AgentLink(Order.GO, at=0)
        Script(tmp_path, link=link, every=1000).train()
        steps = EPOCHS * -(-SAMPLES // 4)
        assert link.noted == [("committed", steps), ("finished", -1)]
        # Restarted after its end: nothing left to do, nothing written twice.
        again = AgentLink(Order.GO, at=0)
        Script(tmp_path, link=again).train()
        assert again.noted == [("committed", steps), ("finished", -1)]
        assert verify(tmp_path / "audit", SAMPLES, EPOCHS).ok

    def test_the_last_collective_of_a_process_carries_no_tensor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A broadcast there aborted about one process in twenty at exit: see ProcessGroup.barrier.
        calls: list[str] = []

        def say(_: ProcessGroup, source: int, value: object) -> object:
            calls.append("broadcast")
            return value

        monkeypatch.setattr(ProcessGroup, "from_rank", say)
        monkeypatch.setattr(ProcessGroup, "barrier", lambda _: calls.append("barrier"))
        Script(tmp_path).train()
        assert calls[0] == "broadcast"
        assert calls[-1] == "barrier"

    def test_an_error_in_the_loop_is_no_end(self, tmp_path: Path) -> None:
        link = AgentLink(Order.GO, at=0)
        script = Script(tmp_path, link=link, every=1000)
        with pytest.raises(ZeroDivisionError), script.checkpointer:
            raise ZeroDivisionError
        assert link.noted == []

    def test_commits_follow_the_clock(self, tmp_path: Path) -> None:
        now = [100.0]
        link = AgentLink(Order.GO, at=0)
        script = Script(tmp_path, link=link, every=timedelta(seconds=10), clock=lambda: now[0])
        for batches in script.data:
            assert batches is not None
            script.checkpointer.step()
            now[0] += 4
            if script.data.steps == 8:
                break
        assert link.noted == [("committed", 4), ("committed", 7)]

    def test_without_an_interval_commits_take_under_one_percent(self, tmp_path: Path) -> None:
        class SlowStorageClock:
            """Each look costs 0.05 s, so a commit takes 0.05 s and waits for 5 s."""

            now = 0.0

            def __call__(self) -> float:
                self.now += 0.05
                return self.now

        clock = SlowStorageClock()
        link = AgentLink(Order.GO, at=0)
        script = Script(tmp_path, link=link, clock=clock)
        script.train(5)
        assert script.checkpointer.save_time == timedelta(0)  # 1 s at least
        clock.now += 1
        iterator = iter(script.data)
        next(iterator)
        script.checkpointer.step()
        assert script.checkpointer.save_time == pytest.approx(
            timedelta(seconds=0.05), abs=timedelta(milliseconds=1)
        )
        clock.now += 4.5
        next(iterator)
        script.checkpointer.step()
        clock.now += 1
        next(iterator)
        script.checkpointer.step()
        assert link.noted == [("committed", 6), ("committed", 8)]

    def test_a_periodic_commit_that_fails_is_no_reason_to_stop(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = Script(tmp_path, every=2)
        script.train(3)

        def full(*_: object, **__: object) -> NoReturn:
            raise StorageError("no space")

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "write", full)
            script.train(3)
            with pytest.raises(StorageError, match="no space"):
                script.checkpointer.finish()
        assert "going on without this commit: no space" in caplog.text
        assert Script(tmp_path).data.steps == 2

    def test_a_commit_of_a_wrapped_model_loads_into_a_bare_one(self, tmp_path: Path) -> None:
        script = Script(tmp_path / "bare")
        wrapped = torch.nn.DataParallel(script.model)
        checkpointer = Checkpointer(
            tmp_path / "wrapped", model=wrapped, optimizer=script.optimizer, data=script.data
        )
        checkpointer.finish()
        loaded = Script(tmp_path / "wrapped")
        for one, other in zip(script.parameters, loaded.parameters, strict=True):
            assert torch.equal(one, other)

    def test_more_state_travels_along(self, tmp_path: Path) -> None:
        def scheduled(folder: Path) -> tuple[Script, torch.optim.lr_scheduler.StepLR]:
            script = Script(folder / "unused")
            scheduler = torch.optim.lr_scheduler.StepLR(script.optimizer, 1)
            script.checkpointer = Checkpointer(
                folder,
                model=script.model,
                optimizer=script.optimizer,
                data=script.data,
                extra={"scheduler": scheduler},
            )
            return script, scheduler

        script, scheduler = scheduled(tmp_path)
        script.optimizer.step()
        scheduler.step()
        script.checkpointer.finish()
        shutil.rmtree(tmp_path / "unused")
        assert scheduled(tmp_path)[1].last_epoch == 1

    @pytest.mark.parametrize("every", [0, -1, timedelta(0)])
    def test_an_impossible_interval_is_refused(
        self, tmp_path: Path, every: int | timedelta
    ) -> None:
        with pytest.raises(ValueError, match="expected a positive number of steps"):
            Script(tmp_path, every=every)


def run_example(folder: Path, *arguments: str, workers: int = 0) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of the example, alone or with torchrun and workers."""
    torchrun = ("--standalone", f"--nproc-per-node={workers}", EXAMPLE)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PET_", "TORCHELASTIC_", "VOLCANO_ELASTIC_"))
    }
    script = module("torch.distributed.run") if workers else EXAMPLE.read_text()
    process = TorchProcess(
        script,
        *(torchrun if workers else ()),
        *("--folder", folder, *arguments),
        environment=environment,
    )
    try:
        said, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.wait(), said, errors


class TestExample:
    def test_fits_on_a_page(self) -> None:
        assert len(EXAMPLE.read_text().splitlines()) <= 40

    @pytest.mark.process
    def test_two_processes_then_one_share_one_training(self, tmp_path: Path) -> None:
        code, said, errors = run_example(tmp_path, "--epochs", "2", workers=2)
        assert code == 0, errors
        result = json.loads(said.splitlines()[-1])
        assert result == json.loads((tmp_path / "result.json").read_text())
        assert (result["steps"], result["samples"]) == (2 * 45, 2 * 1437)
        assert verify(tmp_path / "audit", 1437, 2).ok
        # The same folder, another world, two more epochs.
        code, said, errors = run_example(tmp_path, "--epochs", "4")
        assert code == 0, errors
        result = json.loads(said.splitlines()[-1])
        assert (result["steps"], result["samples"]) == (2 * 45 + 2 * 90, 4 * 1437)
        assert result["accuracy"] > 0.88
        report = verify(tmp_path / "audit", 1437, 4)
        assert (report.ok, report.runs, report.undone) == (True, 2, 0)

    @pytest.mark.process
    def test_a_folder_that_can_not_be_written_stops_all_ranks_at_the_start(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        port = str(free_endpoint())
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            TorchProcess(
                EXAMPLE.read_text(),
                *("--folder", tmp_path / "file" / "commits", "--epochs", "1"),
                environment={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank},
            )
            for rank in ("0", "1")
        ]
        try:
            for rank in ranks:
                _, errors = rank.communicate(timeout=PATIENCE)
                assert rank.returncode == 1
                assert "file/commits/TRAINING can't be used: Not a directory" in errors
        finally:
            for rank in ranks:
                rank.kill()


def test_logging_is_left_to_the_script() -> None:
    assert not logging.getLogger("trainer").handlers
