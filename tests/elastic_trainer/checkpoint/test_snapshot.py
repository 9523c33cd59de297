"""A save that training goes on beside holds the step that it was begun after, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.checkpoint import memory_saves
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.checkpoint.memory import Memory
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.loop import ElasticLoop
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.copier import (
    OVERLAP_VARIABLE,
    Copier,
    Copy,
    GpuCopier,
    HostCopier,
    copier_of,
    overlap_bytes,
)
from elastic_trainer.store.slot import Slots
from torch.utils.data import TensorDataset

from tests.elastic_trainer.checkpoint.test_checkpoint_memory import SealingLink

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class LazyCopy:
    """A copy that the device comes to as late as it may: when something has to come after it."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy: Callable[[], None] | None = copy

    def done(self) -> bool:
        return self._copy is None

    def wait(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy()

    def precede(self) -> None:
        self.wait()

    def seconds(self) -> float:
        return 1.0


class LazyCopier:
    def __init__(self) -> None:
        self.pinned: list[str] = []
        self.copies: list[Copy] = []

    def pin(self, name: str, memory: torch.Tensor) -> None:
        assert len(memory)
        self.pinned.append(Path(name).name)

    def start(self, copy: Callable[[], None]) -> Copy:
        self.copies.append(LazyCopy(copy))
        return self.copies[-1]


class Training:
    """A loop that saves each step, with buffers that a forward moves."""

    def __init__(self, folder: Path, copier: Copier, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        ).to(device)
        self.device = device
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)
        values = torch.linspace(-1, 1, 150).reshape(50, 3)
        self.data = ElasticDataset(
            TensorDataset(values, values.sum(1, keepdim=True)),
            **{"batch_size": 4, "epochs": 9, "group": ProcessGroup()},
        )
        self.link = SealingLink()
        (folder / "slots").mkdir(parents=True)
        self.slots = Slots(folder / "slots", 0)
        self.checkpointer = Checkpointer(
            folder / "commits",
            model=self.net,
            optimizer=self.optimizer,
            data=self.data,
            link=self.link,
            memory=Memory(folder / "slots", self.link, copier=copier),
            every=1,
            overlaps=True,
        )
        self.after: dict[int, dict[str, Any]] = {}
        """By step, what the model and its optimizer were then."""

    def train(self, steps: int, between: Callable[[int], object] = lambda step: None) -> None:
        batches = iter(self.data)
        for _ in range(steps):
            inputs, wanted = (one.to(self.device) for one in next(batches))
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.net(inputs), wanted).backward()
            between(self.data.steps)
            self.checkpointer.before_apply()
            self.optimizer.step()
            self.data.applied()
            self.after[self.data.steps] = self.state()
            self.checkpointer.save_if_due()
        batches.close()

    def state(self) -> dict[str, Any]:
        model = {name: one.clone() for name, one in self.net.state_dict().items()}
        moments = [one["exp_avg"].clone() for one in self.optimizer.state.values()]
        return {"model": model, "moments": moments}

    def saved(self) -> dict[int, dict[str, Any]]:
        found = {}
        for slot, label in self.slots.sealed().items():
            state = slot.read()
            moments = [one["exp_avg"] for one in state["optimizer"]["state"].values()]
            found[label.step] = {"model": dict(state["model"]), "moments": moments}
        return found


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    models = zip(one["model"].values(), other["model"].values(), strict=True)
    moments = zip(one["moments"], other["moments"], strict=True)
    return all(a.cpu().equal(b.cpu()) for a, b in (*models, *moments))


@pytest.fixture(autouse=True)
def small_states_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERLAP_VARIABLE, "0")


def test_copies_go_on_beside_training_where_the_device_has_a_way_and_they_are_worth_it() -> None:
    host, gpu = HostCopier(), GpuCopier(torch.device("cuda", 0))
    assert overlap_bytes(host, {}) == overlap_bytes(gpu, {}) == 1 << 20
    assert overlap_bytes(None, {OVERLAP_VARIABLE: "0"}) is None
    assert overlap_bytes(gpu, {OVERLAP_VARIABLE: "5"}) == 5
    assert overlap_bytes(host, {OVERLAP_VARIABLE: "-1"}) is None
    with pytest.raises(ValueError, match="expected a number of bytes, found 'much'"):
        overlap_bytes(host, {OVERLAP_VARIABLE: "much"})


def test_a_copy_that_comes_late_holds_the_step_it_was_begun_after(tmp_path: Path) -> None:
    copier = LazyCopier()
    training = Training(tmp_path, copier)
    training.train(4)
    assert 4 not in training.saved(), "its copy has not begun"
    assert alike(training.saved()[3], training.after[3]), "though step 4's forward moved buffers"
    training.checkpointer.settle()
    assert sorted(training.saved()) == [3, 4]
    assert alike(training.saved()[4], training.after[4])
    assert [one.step for one in training.link.told] == [1, 2, 3, 4]
    assert set(copier.pinned) >= {"rank-0-0", "rank-0-1"}


def test_weights_that_a_script_changes_beside_apply_spoil_no_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, LazyCopier())

    def clamp(step: int) -> None:
        if step == 2:
            with torch.no_grad():
                training.net[0].weight.clamp_(-0.01, 0.01)

    training.train(3, between=clamp)
    assert "copy of step 2 in memory isn't used" in caplog.text
    assert sorted(training.saved()) == [1, 3]
    training.checkpointer.commit(stored=False)
    assert alike(training.saved()[3], training.after[3])


def test_weights_that_each_forward_changes_are_saved_nevertheless(tmp_path: Path) -> None:
    training = Training(tmp_path, LazyCopier())

    def renormalize(_: int) -> None:  # as an embedding's max_norm does
        with torch.no_grad():
            training.net[0].weight.mul_(0.99)

    training.train(4, between=renormalize)
    assert sorted(training.saved())[-2:] == [3, 4]
    assert alike(training.saved()[4], training.after[4])


def test_weights_that_are_replaced_for_an_evaluation_spoil_no_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copier = LazyCopier()
    training = Training(tmp_path, copier)

    def evaluate(step: int) -> None:  # as libraries do with averages: torch counts no change
        if step == 2:
            weights = [one.data.clone() for one in training.net.parameters()]
            for one in training.net.parameters():
                one.data.copy_(one.data * 0.9)
            copier.copies[-1].wait()
            for one, before in zip(training.net.parameters(), weights, strict=True):
                one.data.copy_(before)

    training.train(3, between=evaluate)
    assert "copy of step 2 in memory isn't used" in caplog.text
    assert all(alike(state, training.after[step]) for step, state in training.saved().items())
    assert 3 in training.saved()


def test_a_save_is_told_of_before_the_ranks_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = SealingLink()
    monkeypatch.setattr(WorkerLink, "from_environment", lambda **_: link)
    (tmp_path / "slots").mkdir()
    net = torch.nn.Linear(1, 1)
    values = TensorDataset(torch.ones(8, 1))
    loop = ElasticLoop(
        tmp_path / "commits",
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data=ElasticDataset(values, batch_size=1, epochs=1),
        every=1,
    )
    loop.checkpointer._memory = Memory(tmp_path / "slots", link, copier=LazyCopier())
    batches = iter(loop)
    (inputs,) = next(batches)
    with loop.step():
        loop.model(inputs).sum().backward()
    next(batches)
    assert not link.told, "the copy has not ended"
    loop._disconnect()  # a peer is lost: who was rank 0 may not be there in the next round
    assert [one.step for one in link.told] == [1]
    batches.close()


def test_a_process_that_ends_by_an_error_leaves_what_it_was_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(
        memory_saves.atexit, "register", lambda *given: at_exit.append(partial(*given))
    )
    training = Training(tmp_path, LazyCopier())
    training.train(2)
    assert 2 not in training.saved()
    for function in at_exit:
        function()
    assert alike(training.saved()[2], training.after[2])


@pytest.mark.parametrize("device", DEVICES)
def test_the_devices_own_copier_saves_each_step_whole(tmp_path: Path, device: str) -> None:
    copier = copier_of(torch.nn.Linear(1, 1).to(device))
    assert isinstance(copier, HostCopier if device == "cpu" else GpuCopier)
    training = Training(tmp_path, copier, device)
    for _ in range(5):
        training.train(3)
        training.checkpointer.settle()
        saved = training.saved()
        assert training.data.steps in saved and len(saved) > 1, "the step before, too"
        assert all(alike(state, training.after[step]) for step, state in saved.items())


def test_an_error_of_the_copy_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no")

    copy = HostCopier().start(fail)
    with pytest.raises(ValueError, match="no"):
        copy.precede()


def test_memory_that_cant_be_pinned_is_said_once_and_leaves_no_error_for_the_next_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Runtime:
        """CUDA's, as far as it is asked, where nothing can be pinned."""

        asked = 0
        left = False
        """An error is kept for who asks next."""

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
            self.asked += 1
            self.left = True
            return 2

        def kernel(self, *arguments: Any, **options: Any) -> None:
            left, self.left = self.left, False
            if left:
                raise RuntimeError("CUDA error: out of memory")

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch, "ones", runtime.kernel)
    copier, memory, other = GpuCopier(torch.device("cuda", 0)), torch.empty(8), torch.empty(8)
    copier.pin("slot", memory)
    copier.pin("slot", memory)
    assert (runtime.asked, runtime.left) == (1, False)
    assert caplog.text.count("slot are slower") == 1
    copier.pin("slot", other)
    assert runtime.asked == 2, "it is mapped anew, where there may be room"


def test_models_on_several_devices_or_of_another_kind_are_copied_at_once() -> None:
    parts = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta")])
    assert copier_of(parts) is None
