"""A sharded model's optimizer gets its state without a step of nothing, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.model_state import MismatchError, ModelState
from elastic_trainer.checkpoint.parts import load_parts
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.blob import lay_out, read, read_parts
from torch.distributed.fsdp import fully_shard

from tests.elastic_trainer.checkpoint.optimizers import names_but

SPECIAL = {
    "Adafactor": "torch can't step it on a sharded model",
    "LBFGS": "its step() needs a closure",
    "SparseAdam": "takes sparse gradients only",
}
OPTIMIZERS = names_but(SPECIAL)
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
}
Make = Callable[[Any], torch.optim.Optimizer]


class Training:
    """In a world of one.

    Args:
        make: makes the optimizer.
        frozen: the last layer isn't trained.
    """

    def __init__(self, make: Make, *, frozen: bool = False) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 4, bias=False), torch.nn.Tanh(), torch.nn.Linear(4, 4, bias=False)
        )
        fully_shard(self.net)
        self.net[2].requires_grad_(not frozen)
        self.optimizer = make(self.net.parameters())
        self.stepped = 0
        self.optimizer.register_step_post_hook(self._count)
        self.state = ModelState(self.net, self.optimizer, ElasticSampler(9, batch_size=1), {})

    def _count(self, *_: Any) -> None:
        self.stepped += 1

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            torch.manual_seed(step)
            self.optimizer.zero_grad()
            self.net(torch.randn(3, 4)).square().sum().backward()
            self.optimizer.step()

    def saved(self) -> tuple[bytes, memoryview]:
        blob = lay_out({**self.state.take(), "rng": self.state.generators()})
        slot = torch.zeros(blob.size, dtype=torch.uint8)
        blob.write(slot)
        return blob.skeleton, memoryview(slot.numpy())

    def values(self) -> dict[str, Any]:
        state = self.state.take()
        return {key: _values(state[key]) for key in ("model", "optimizer")}


def _values(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        local = cast(Any, value).to_local() if hasattr(value, "to_local") else value
        return (local.dtype, local.tolist())
    if isinstance(value, dict):
        return {key: _values(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_values(one) for one in value]
    return value


@pytest.fixture(autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def load(training: Training, saved: tuple[bytes, memoryview]) -> None:
    load_parts(
        training.state,
        lambda owner: cast(dict[str, Any], read_parts(*saved)),
        {0: 0},
        ProcessGroup.current(),
        lambda size: None,
    )


def give(training: Training, saved: tuple[bytes, memoryview]) -> None:
    training.state.give(read(*saved, training.state.meshes))


@pytest.mark.parametrize("restore", [load, give])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_without_a_step_of_nothing(
    name: str, restore: Callable[[Training, tuple[bytes, memoryview]], None]
) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, name)(
            parameters, **OPTIONS.get(name, {})
        )
        return made

    whole, again = Training(make), Training(make)
    whole.train(0, 3)
    saved = whole.saved()
    restore(again, saved)
    assert again.stepped == 0
    assert again.values() == whole.values()
    saved[1][:] = bytes(len(saved[1]))  # as the slot is used again
    whole.train(3, 6)
    again.train(3, 6)
    assert again.values() == whole.values()


class Sums(torch.optim.SGD):
    """Keeps a row of each matrix' sums."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in (one for one in group["params"] if one.grad is not None):
                held = self.state[one].setdefault("sums", one.new_zeros(1, one.shape[1]))
                held.add_(one.detach()[:1])
        return super().step(closure)


def test_an_optimizer_whose_state_is_divided_otherwise_makes_torchs_step() -> None:
    whole, again = Training(Sums), Training(Sums)
    whole.train(0, 3)
    load(again, whole.saved())
    assert again.stepped
    assert again.values() == whole.values()


def test_another_optimizers_state_is_refused() -> None:
    whole = Training(torch.optim.Adam)
    whole.train(0, 3)
    with pytest.raises(MismatchError, match="momentum_buffer: expected"):
        load(Training(lambda p: torch.optim.SGD(p, momentum=0.9)), whole.saved())


def test_another_optimizers_groups_are_refused_and_leave_it_without_a_state() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": [one]} for one in parameters])

    whole, other = Training(torch.optim.Adam), Training(make)
    whole.train(0, 1)
    with pytest.raises(MismatchError, match=r"no parameter group of 0\.weight: expected one for"):
        give(other, whole.saved())
    assert not other.state.complete


def test_a_fresh_optimizer_is_saved_without_a_step_and_without_a_state() -> None:
    fresh, again = Training(torch.optim.Adam), Training(torch.optim.Adam)
    load(again, fresh.saved())
    assert fresh.stepped == again.stepped == 0
    assert not (fresh.state.complete or again.state.complete)


@pytest.mark.parametrize("restore", [load, give])
def test_what_never_had_a_gradient_stays_without_a_state(
    restore: Callable[[Training, tuple[bytes, memoryview]], None],
) -> None:
    whole, again = Training(torch.optim.Adam, frozen=True), Training(torch.optim.Adam)
    whole.train(0, 3)
    restore(again, whole.saved())
    assert len(again.optimizer.state) == 1
    for one in (whole, again):
        one.net[2].requires_grad_(True)
        one.train(3, 6)
    assert again.values() == whole.values()


@pytest.mark.parametrize("restore", [load, give])
def test_what_is_frozen_when_it_is_made_gets_the_state_it_was_trained_to(
    restore: Callable[[Training, tuple[bytes, memoryview]], None],
) -> None:
    whole, again = Training(torch.optim.Adam), Training(torch.optim.Adam, frozen=True)
    whole.train(0, 3)
    restore(again, whole.saved())
    assert again.values() == whole.values()


def test_torchs_step_makes_a_state_of_no_more_than_was_saved() -> None:
    whole, again = Training(Sums, frozen=True), Training(Sums)
    whole.train(0, 3)
    load(again, whole.saved())
    assert again.stepped
    assert again.values() == whole.values()


def test_torchs_step_makes_no_state_of_what_is_frozen_and_was_not_saved() -> None:
    """Such as all of a large model but its adapters, which an optimizer was given whole."""
    whole, again = Training(Sums, frozen=True), Training(Sums, frozen=True)
    whole.train(0, 3)
    made: list[int] = []
    again.optimizer.register_step_post_hook(lambda *_: made.append(len(again.optimizer.state)))
    load(again, whole.saved())
    assert set(made) == {1}
    assert again.values() == whole.values()


def test_torchs_step_is_made_beside_gradients_of_a_trial_step_too() -> None:
    whole, again = Training(Sums), Training(Sums)
    whole.train(0, 3)
    again.net(torch.ones(3, 4)).square().sum().backward()
    before = [one.grad for one in again.net.parameters()]
    load(again, whole.saved())
    assert all(a.grad is b for a, b in zip(again.net.parameters(), before, strict=True))
    assert again.values() == whole.values()
