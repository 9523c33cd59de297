"""Buffers are kept at a cost that doesn't follow their number, and come back as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from elastic_trainer.loop.undo import BufferBackup
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.examples import examples


class Count(TorchDispatchMode):
    """The tensors that operations are given."""

    tensors = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        found = torch.utils._pytree.tree_leaves((given, options))
        self.tensors += sum(isinstance(one, torch.Tensor) for one in found)
        return function(*given, **(options or {}))


def tensors_of_a_save(layers: int) -> int:
    backup = BufferBackup([nn.Sequential(*(nn.BatchNorm2d(8) for _ in range(layers)))])
    with Count() as count:
        backup.save()
    return count.tensors


def test_many_batch_norms_are_kept_by_as_many_operations_as_one() -> None:
    assert tensors_of_a_save(1) == tensors_of_a_save(53)


class Odd(nn.Module):
    """Buffers that are no batch norm's: a view that something else moves, one not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.zeros(10)
        self.register_buffer("view", self.whole[2:5])
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("nothing", None)


def model(sizes: list[int]) -> nn.Module:
    norms = [nn.BatchNorm1d(size) for size in sizes]
    return nn.ModuleList([*norms, *norms[:1], nn.LazyBatchNorm1d(), Odd()])


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(1, 70), max_size=6))
def test_buffers_come_back_as_they_were_and_stay_the_modules_own(sizes: list[int]) -> None:
    net = model(sizes)
    values = [one for one in net.buffers() if not nn.parameter.is_lazy(one)]
    before = [one.clone() for one in values]
    backup = BufferBackup([net])
    assert [one.tolist() for one in values] == [one.tolist() for one in before]
    for again in (backup, BufferBackup([net])):
        again.save()
        places = [one.data_ptr() for one in values]
        for one in values:
            one += 1
        assert net[-1].whole[2:5].tolist() == [1.0, 1.0, 1.0], "it is still the view of it"  # type: ignore[index, union-attr]
        again.restore()
        assert [one.tolist() for one in values] == [one.tolist() for one in before]
    assert [one.data_ptr() for one in values] == places, "laid side by side once"
    norms = [one for layer in net if isinstance(layer, nn.BatchNorm1d) for one in layer.buffers()]
    assert all(one.data_ptr() % 16 == 0 for one in norms if not nn.parameter.is_lazy(one))
    copied = copy.deepcopy(net[:-2])  # type: ignore[index]
    for one in values:
        one += 1
    found = [one.tolist() for one in copied.buffers()]
    assert found == [one.tolist() for one in before[: len(found)]]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_training_moves_the_buffers_that_are_kept(kind: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(kind(3, track_running_stats=True) for _ in range(3)))
    twin = copy.deepcopy(net)
    backup = BufferBackup([net])
    backup.save()
    batch = torch.randn(4, 3, 5, 5)
    assert torch.equal(net(batch), twin(batch))
    for mine, theirs in zip(net.buffers(), twin.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    backup.restore()
    assert all(layer.num_batches_tracked == 0 for layer in net)


class Replacing(nn.BatchNorm1d):
    """Makes new buffers in its forward, as norms of one's own do."""

    def __init__(self) -> None:
        super().__init__(2)
        self.register_buffer("first", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.running_mean = 0.9 * self.running_mean + 0.1 * x.mean(0)
        if self.first is None:
            self.first = x.clone()
        return x


def test_buffers_that_a_forward_replaces_are_put_back_at_any_step() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Replacing(), nn.BatchNorm1d(2))
    backup = BufferBackup([net])
    for _ in range(3):
        backup.save()
        before = {name: value.clone() for name, value in net.named_buffers()}
        for _ in range(2):
            net(torch.randn(4, 2))
            backup.restore()
            assert {name: value.tolist() for name, value in net.named_buffers()} == {
                name: value.tolist() for name, value in before.items()
            }
        net(torch.randn(4, 2))  # the step that is applied
    assert net[0].running_mean.abs().sum() > 0
