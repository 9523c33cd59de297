"""The learning rate follows the global batch, in steps, and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.learning_rate import Ramp, ScaledLearningRate
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.ranks.process_group import ProcessGroup
from torch.utils.data import TensorDataset


def setup(**given: Any) -> tuple[torch.optim.SGD, ElasticDataset, ScaledLearningRate]:
    data = ElasticDataset(
        TensorDataset(torch.zeros(1000)), batch_size=4, epochs=1, group=ProcessGroup(0, 1)
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    return optimizer, data, ScaledLearningRate(optimizer, data, **{"base_batch": 8, **given})


def steps(optimizer: torch.optim.SGD, data: ElasticDataset, world: int, count: int) -> list[float]:
    """The learning rates of `count` steps in a world."""
    data.regroup(ProcessGroup(0, world))
    found: list[float] = []
    batches = iter(data)
    for _ in range(count):
        next(batches)
        parameter = optimizer.param_groups[0]["params"][0]
        before = parameter.item()
        parameter.grad = torch.ones(1)
        optimizer.step()
        found.append(round(before - parameter.item(), 6))
        assert optimizer.param_groups[0]["lr"] == 0.5  # what schedulers and commits see
        data.applied()
    return found


@pytest.mark.parametrize(
    ("rule", "rates"),
    [("linear", [0.25, 0.5, 1.0]), ("sqrt", [0.353553, 0.5, 0.707107]), (lambda _: 3, [1.5] * 3)],
)
def test_the_rate_follows_the_world(rule: Any, rates: list[float]) -> None:
    optimizer, data, _ = setup(rule=rule)
    assert [steps(optimizer, data, world, 1)[0] for world in (1, 2, 4)] == rates


def test_a_change_is_warmed_up_from_where_the_rate_was() -> None:
    optimizer, data, scaled = setup(warm_up=3)
    assert steps(optimizer, data, 2, 2) == [0.5, 0.5]
    assert steps(optimizer, data, 6, 5) == [0.75, 1.0, 1.25, 1.5, 1.5]
    assert steps(optimizer, data, 2, 2) == [1.25, 1.0]
    saved = scaled.state_dict(), data.state_dict()
    on = steps(optimizer, data, 2, 3)
    assert on == [0.75, 0.5, 0.5]
    optimizer, data, scaled = setup(warm_up=3)  # a newcomer, or after a crash
    scaled.load_state_dict(saved[0])
    data.load_state_dict(saved[1])
    assert steps(optimizer, data, 2, 3) == on


def test_a_change_amid_a_change_starts_from_there() -> None:
    ramp = Ramp(1.0, 1.0, 0).toward(2.0, 10, 3)
    assert [ramp.factor(step, 3) for step in range(10, 14)] == [1.25, 1.5, 1.75, 2.0]
    assert ramp.toward(1.0, 12, 3) == Ramp(1.5, 1.0, 12)


def test_a_step_that_fails_leaves_the_rate_to_the_next() -> None:
    optimizer, data, _ = setup()
    data.regroup(ProcessGroup(0, 4))

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    hook.remove()
    assert steps(optimizer, data, 4, 1) == [1.0]


def test_impossible_scalings_are_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'cubic': expected linear, sqrt or a function"):
        setup(rule="cubic")
    with pytest.raises(ValueError, match="found 8 and -1"):
        setup(warm_up=-1)


def scheduled(**given: Any) -> tuple[torch.optim.SGD, ElasticDataset]:
    optimizer, data, _ = setup(base_batch=None, schedule=lambda done: 1 - done, **given)
    return optimizer, data


def test_a_schedule_counts_samples_in_any_world() -> None:
    optimizer, data = scheduled()
    alone = steps(optimizer, data, 1, 100)  # 4 samples each
    optimizer, data = scheduled()
    elastic = steps(optimizer, data, 1, 10) + steps(optimizer, data, 4, 10)
    assert elastic[:10] == alone[:10]
    assert elastic[10:] == pytest.approx(alone[10:50:4], abs=1e-5)
    assert alone[50] == pytest.approx(0.5 * (1 - 200 / 1000))


def test_a_schedule_goes_on_where_the_data_does() -> None:
    optimizer, data = scheduled()
    steps(optimizer, data, 2, 7)
    saved = data.state_dict()
    on = steps(optimizer, data, 2, 5)
    optimizer, data = scheduled()
    data.load_state_dict(saved)
    assert steps(optimizer, data, 2, 5) == on


def test_a_schedule_and_the_worlds_factor_multiply() -> None:
    optimizer, data, scaled = setup(schedule=lambda done: 1 - done, total=4000)
    assert steps(optimizer, data, 4, 2) == [1.0, round(1.0 * (1 - 16 / 4000), 6)]
    assert scaled.done == 32 / 4000


def test_a_schedule_needs_a_total() -> None:
    optimizer, data, _ = setup()
    sampler = ElasticSampler(100, batch_size=4)
    with pytest.raises(ValueError, match="ElasticSampler knows no total of samples: ex"):
        ScaledLearningRate(optimizer, sampler, schedule=float)
    with pytest.raises(ValueError, match="expected base_batch, schedule or both"):
        ScaledLearningRate(optimizer, data)
