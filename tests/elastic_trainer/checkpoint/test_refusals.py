"""A schedule that is saved with other steps than were applied is noticed; refusals by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_trainer.checkpoint.checkpointer as checkpointer_module
import pytest
import torch
import torch.distributed as dist
from elastic_trainer import Checkpointer, ElasticDataset, ElasticLoop
from elastic_trainer.checkpoint.model_state import MismatchError, ModelState
from elastic_trainer.checkpoint.refusal import (
    NCCL_ERRORS_VARIABLE,
    backend,
    refuse_silent_aborts,
)
from elastic_trainer.checkpoint.schedule_check import miscounted
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import (  # type: ignore[attr-defined]
    ZeroRedundancyOptimizer,
    _apply_optimizer_in_backward,
)
from torch.utils.data import TensorDataset

STEPS = st.integers(10, 10_000)


@given(steps=STEPS, epoch=st.integers(1, 100))
def test_what_counts_steps_epochs_or_every_other_step_is_right(steps: int, epoch: int) -> None:
    for count in (steps, epoch, epoch - 1, steps // 2):
        assert miscounted({"schedule": count}, steps=steps, epoch=epoch) is None


@given(steps=STEPS, off=st.sampled_from([-1, 1]))
def test_one_step_too_many_or_too_few_is_noticed(steps: int, off: int) -> None:
    found = miscounted({"schedule": steps + off}, steps=steps, epoch=0)
    assert found is not None
    assert f"stepped {steps + off} times for {steps} steps" in found


@pytest.mark.parametrize("late", [True, False], ids=["after the commit", "before it"])
def test_a_scheduler_stepped_after_the_commit_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    data = ElasticDataset(TensorDataset(torch.ones(40, 2)), batch_size=2, epochs=1)
    given: dict[str, Any] = {"model": net, "optimizer": optimizer, "data": data}
    checkpointer = Checkpointer(tmp_path, **given, every=1, extra={"schedule": scheduler})
    for (x,) in data:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        if not late:
            scheduler.step()
        checkpointer.step()
        if late:
            scheduler.step()
    assert ("'schedule' was stepped" in caplog.text) == late


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_zero_redundancy_optimizer_is_refused_before_training(tmp_path: Path, group: None) -> None:
    net = torch.nn.Linear(2, 1)
    data = ElasticDataset(TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"ZeroRedundancyOptimizer .*fully_shard"):
        Checkpointer(tmp_path, model=net, optimizer=zero, data=data)
    with pytest.raises(ValueError, match=r"ZeroRedundancyOptimizer .*fully_shard"):
        ElasticLoop(tmp_path, model=net, optimizer=zero, data=data)
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"ZeroRedundancyOptimizer .*fully_shard"):
        Checkpointer(tmp_path, model=net, optimizer=plain, data=data, extra={"zero": zero})


def test_sharded_tensors_in_extra_that_no_commit_has_are_refused(
    tmp_path: Path, group: None
) -> None:
    """A commit has one rank's `extra`, of which each rank would get that one's part."""

    class Average:
        def __init__(self) -> None:
            self.weights = [torch.zeros(2)]

        def state_dict(self) -> dict[str, Any]:
            return {"weights": self.weights}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise NotImplementedError

    def made() -> torch.nn.Module:
        return fully_shard(torch.nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,)))

    net, late = made(), Average()
    data = ElasticDataset(TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD([net.weight], lr=0.1)
    given: dict[str, Any] = {"model": net, "optimizer": optimizer, "data": data}
    whole = torch.nn.Linear(2, 1)
    beside = {**given, "model": whole, "optimizer": torch.optim.SGD(whole.parameters(), lr=0.1)}
    for part in (made(), torch.optim.SGD([net.bias], lr=0.1)):
        with pytest.raises(
            ValueError, match=r"extra\['part'\] holds sharded tensors .*rank's extra"
        ):
            Checkpointer(tmp_path, **beside, extra={"part": part})
        Checkpointer(tmp_path, **given, extra={"part": part}).state.take()
    for kind in (given, beside):
        checkpointer = Checkpointer(tmp_path, **kind, extra={"late": late})
        late.weights = [net.weight]
        with pytest.raises(ValueError, match=r"extra\['late'\] holds sharded tensors"):
            checkpointer.state.take()
        late.weights = []
    # Another world would not know how to divide a state that isn't as the parameter is.
    second = torch.optim.SGD([net.bias, net.weight], lr=0.1)
    second.state[net.bias]["momentum_buffer"] = net.weight.detach().clone()
    with pytest.raises(ValueError, match=r"extra\['second'\] .*divided as its parameters are"):
        Checkpointer(tmp_path, **given, extra={"second": second}).state.take()


def test_a_commit_that_has_one_ranks_part_of_an_extra_is_refused(
    tmp_path: Path, group: None
) -> None:
    """Each rank would get that one's part."""
    net = fully_shard(torch.nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,)))
    second = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = ElasticDataset(TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    extra = {"second": second}
    state = ModelState(net, optimizer, data, extra)
    net(torch.ones(1, 2)).sum().backward()
    second.step()
    saved = {"second": second.state_dict()}
    with pytest.raises(
        MismatchError, match=r"second\.state\.0\.momentum_buffer is one rank's part"
    ):
        state.extra_targets(saved, {})
    assert ModelState(net, optimizer, data, {}).extra_targets(saved, {}) == {}


def test_names_of_sharded_tensors_in_extra_are_their_own(tmp_path: Path, group: None) -> None:
    def made() -> torch.nn.Sequential:
        net = torch.nn.Sequential(torch.nn.Linear(2, 1))
        return fully_shard(net, mesh=init_device_mesh("cpu", (1,)))

    net = made()
    data = ElasticDataset(TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    extra = {
        "a": made(),
        "a.0": fully_shard(torch.nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,))),
    }
    checkpointer = Checkpointer(tmp_path, model=net, optimizer=optimizer, data=data, extra=extra)
    with pytest.raises(ValueError, match=r"two sharded tensors named a\.0\.weight"):
        checkpointer.state.take()


def test_fsdp1_is_refused_before_training(tmp_path: Path, group: None) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = torch.nn.Sequential(torch.nn.Linear(2, 1))
    data = ElasticDataset(TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    plain = torch.optim.SGD(net.parameters(), lr=0.1)

    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return FullyShardedDataParallel(model, device_id=torch.device("cpu"))

    loop = ElasticLoop(tmp_path / "wrap", model=net, optimizer=plain, data=data, wrap=wrap)
    loop._connect()
    loop.world = 2  # as in a round of two
    with pytest.raises(ValueError, match=r"FullyShardedDataParallel \(FSDP1\)"):
        loop._level()
    wrapped = wrap(torch.nn.Sequential(torch.nn.Linear(2, 1)))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for made in (Checkpointer, ElasticLoop):
        with pytest.raises(ValueError, match=r"FullyShardedDataParallel \(FSDP1\)"):
            made(tmp_path, model=wrapped, optimizer=optimizer, data=data)


@pytest.mark.parametrize("backends", ["nccl", "cpu:gloo,cuda:nccl"])
def test_aborted_collectives_that_would_seem_to_end_well_are_refused(backends: str) -> None:
    with pytest.raises(ValueError, match="half-reduced gradients"):
        refuse_silent_aborts(backends, {NCCL_ERRORS_VARIABLE: "2"})
    refuse_silent_aborts(backends, {NCCL_ERRORS_VARIABLE: "3"})
    refuse_silent_aborts(backends, {})
    refuse_silent_aborts("cpu:gloo,cuda:gloo", {NCCL_ERRORS_VARIABLE: "2"})


@pytest.mark.parametrize("made", [Checkpointer, ElasticLoop])
def test_aborted_collectives_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = ElasticDataset(TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    monkeypatch.setattr(checkpointer_module, "backend", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setenv(NCCL_ERRORS_VARIABLE, "2")
    with pytest.raises(ValueError, match="half-reduced gradients"):
        made(tmp_path, model=net, optimizer=optimizer, data=data)
    assert not list(tmp_path.iterdir())


def test_the_backend_that_is_asked_for_is_the_groups(group: None) -> None:
    assert "gloo" in backend()


@pytest.mark.parametrize("saved", [False, True])
def test_a_schedule_that_would_begin_anew_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, saved: bool
) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = ElasticDataset(TensorDataset(torch.zeros(4, 2)), batch_size=2, epochs=1)
    extra = {"schedule": schedule} if saved else {}
    Checkpointer(tmp_path, model=net, optimizer=optimizer, data=data, extra=extra)
    assert ("extra has none: it would begin anew" in caplog.text) is not saved


def test_optimizers_that_step_within_backward_are_refused_unless_they_are_saved(
    tmp_path: Path,
) -> None:
    net = torch.nn.Linear(2, 1)
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = ElasticDataset(TensorDataset(torch.zeros(4, 2)), batch_size=2, epochs=1)
    for made in (Checkpointer, ElasticLoop):
        with pytest.raises(ValueError, match=r"'weight' is stepped within backward, by an .*SGD"):
            made(tmp_path, model=net, optimizer=optimizer, data=data)
    extra = {
        name: parameter._in_backward_optimizers[0]  # type: ignore[attr-defined]
        for name, parameter in net.named_parameters()
    }
    Checkpointer(tmp_path, model=net, optimizer=optimizer, data=data, extra=extra)
