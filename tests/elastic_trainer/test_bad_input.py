"""Wrong input is refused with what was expected, what was found, and what to do."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.loop.loop import ElasticLoop
from elastic_trainer.ranks.process_group import ProcessGroup
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ALONE = ProcessGroup()


def dataset(**given: Any) -> ElasticDataset:
    sizes = {"batch_size": 2, "epochs": 1, "group": ALONE} | given
    return ElasticDataset(TensorDataset(torch.ones(8, 3)), **sizes)


def parts(**given: Any) -> dict[str, Any]:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return {"model": net, "optimizer": optimizer, "data": dataset()} | given


BOTH = pytest.mark.parametrize("of", [Checkpointer, ElasticLoop])


@BOTH
def test_an_optimizer_of_another_model(of: type[Any], tmp_path: Path) -> None:
    other = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=0.1)
    expected = (
        r"the optimizer \(SGD\) has 2 of 2 parameters that the model \(Linear\) hasn't, of shape "
        r"\(1, 3\), \(1,\): expected one of model.parameters\(\). Make it of this model"
    )
    with pytest.raises(ValueError, match=expected):
        of(tmp_path, **parts(optimizer=other))


@BOTH
def test_parameters_beside_the_model_must_be_saved_too(of: type[Any], tmp_path: Path) -> None:
    given, head = parts(), torch.nn.Linear(1, 1)
    given["optimizer"].add_param_group({"params": list(head.parameters())})
    with pytest.raises(ValueError, match=r"2 of 4 parameters .* put other modules .* into `extra`"):
        of(tmp_path, **given)
    if of is ElasticLoop:  # which averages the gradients of its model alone
        with pytest.raises(ValueError, match="each rank would train those by itself"):
            of(tmp_path, **given, extra={"head": head})
        given["wrap"] = lambda model: model
    of(tmp_path, **given, extra={"head": head})


@BOTH
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("data", [1, 2, 3], "data is a list: expected the ElasticDataset or ElasticSampler"),
        ("data", TensorDataset(torch.ones(3)), r"ElasticDataset\(data, batch_size=…, epochs=…\)"),
        ("model", {"weight": 1}, r"model is a dict: expected a torch\.nn\.Module"),
        ("optimizer", 0.1, r"optimizer is a float: expected a torch\.optim\.Optimizer"),
        ("every", "10", "every is '10': expected a number of steps, or a timedelta"),
        ("every", 2.5, "every is 2.5: expected a number of steps, or a timedelta"),
    ],
)
def test_another_kind_of_thing(
    of: type[Any], name: str, value: object, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=expected):
        of(tmp_path, **parts(**{name: value}))


def test_a_sampler_has_no_batches_for_the_loop(tmp_path: Path) -> None:
    sampler = ElasticSampler(8, batch_size=2, group=ALONE)
    with pytest.raises(TypeError, match="data is a ElasticSampler: expected an ElasticDataset"):
        ElasticLoop(tmp_path, **parts(data=sampler))


@pytest.mark.parametrize("name", ["batch_size", "global_batch", "epochs", "seed"])
@pytest.mark.parametrize("value", ["2", 2.0, True])
def test_sizes_that_are_no_whole_numbers(name: str, value: object) -> None:
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"{name} is {value!r}, a {kind}: expected a whole number"):
        dataset(**{name: value})


def test_numpys_whole_numbers_are_some() -> None:
    assert len(list(dataset(batch_size=np.int64(2)))) == 4


@pytest.mark.parametrize(
    "data",
    [
        (i for i in range(3)),
        DistributedSampler(TensorDataset(torch.ones(8)), num_replicas=2, rank=0),  # half of it
        DataLoader(TensorDataset(torch.ones(8)), batch_size=2),  # batches of it
    ],
)
def test_a_sampler_of_something_that_is_no_dataset(data: Any) -> None:
    with pytest.raises(TypeError, match=f"data is a {type(data).__name__}: expected a dataset"):
        ElasticSampler(data, batch_size=2)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"shuffle": True}, "has no shuffle: the order and each rank's part of it are its own"),
        ({"sampler": [1, 2]}, "has no sampler: the order and each rank's part of it are its own"),
        ({"drop_last": True}, "has no drop_last: every sample counts"),
        ({"collate_fn": list}, "has no collate_fn: it is called collate"),
    ],
)
def test_options_of_a_data_loader_that_would_change_the_order(
    option: dict[str, Any], expected: str
) -> None:
    with pytest.raises(TypeError, match=expected):
        dataset(**option)


def test_batches_are_not_batched_again() -> None:
    with pytest.raises(ValueError, match="make batches of ElasticDataset's batches: iterate it"):
        next(iter(DataLoader(dataset(), batch_size=2)))
    assert len(list(DataLoader(dataset(), batch_size=None))) == 4


@pytest.mark.parametrize("inside", [True, False])
def test_a_loop_that_still_steps_the_optimizer_itself(inside: bool, tmp_path: Path) -> None:
    loop = ElasticLoop(tmp_path, **parts())

    def train() -> None:
        for (values,) in loop:
            with loop.step():
                loop.model(values).sum().backward()
                if inside:
                    loop.optimizer.step()
            loop.optimizer.step()

    with pytest.raises(RuntimeError, match=r"optimizer\.step\(\) was called beside ElasticLoop"):
        train()
    assert loop.steps == (0 if inside else 1)


class _Wrapper:
    """Around an optimizer, and none by type, as some libraries have it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state
        self.zero_grad, self.step = inner.zero_grad, inner.step
        self.state_dict, self.load_state_dict = inner.state_dict, inner.load_state_dict


def test_what_wraps_an_optimizer_will_do(tmp_path: Path) -> None:
    given = parts()
    loop = ElasticLoop(tmp_path, **given | {"optimizer": _Wrapper(given["optimizer"])})
    for (values,) in loop:
        with loop.step():
            loop.model(values).sum().backward()
    assert loop.steps == 4


def test_once_the_loop_is_over_the_optimizer_is_the_scripts(tmp_path: Path) -> None:
    loop = ElasticLoop(tmp_path, **parts())
    for (values,) in loop:
        with loop.step():
            loop.model(values).sum().backward()
    loop.optimizer.step()


@pytest.mark.parametrize(
    ("url", "found"), [("s3://bucket/commits", "Install s3fs"), ("nowhere://x", "not known")]
)
def test_a_url_that_nothing_here_serves(
    url: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as where it isn't installed
    with pytest.raises(ValueError, match=rf"the folder {url} can't be used: .*{found}.*; expected"):
        Checkpointer(url, **parts(), every=timedelta(1))


def test_a_data_set_that_changed_its_length(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, **parts())
    for _ in checkpointer.data:  # type: ignore[attr-defined]
        checkpointer.step()
    checkpointer.finish()
    grown = ElasticDataset(TensorDataset(torch.ones(9, 3)), batch_size=2, epochs=1, group=ALONE)
    expected = (
        "rank 0 can't restore step 4: the saved cursor is for samples=8, this dataset has "
        "samples=9: samples would be lost or repeated; restore the former, or start in a new folder"
    )
    with pytest.raises(ValueError, match=expected):
        Checkpointer(tmp_path, **parts(data=grown))
