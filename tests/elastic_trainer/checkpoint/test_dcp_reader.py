"""A sharded commit is read as data: nothing in its files is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.checkpoint.dcp_reader import PlainPlanner, read_index, reader
from elastic_trainer.store.answer import Calls
from elastic_trainer.store.errors import DamagedError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class Trap:
    """Runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def saved(folder: Path, value: object) -> dict[str, Any]:
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": {"steps": value, "lr": 0.5}}
    save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    return state


def load_from(folder: Path) -> dict[str, Any]:
    state = {"a": torch.zeros(2, 3), "b": {"steps": 0, "lr": 0.0}}
    index = read_index((folder / ".metadata").read_bytes())
    load(
        state,
        storage_reader=reader(str(folder), index, Calls(lambda: 60.0)),
        planner=PlainPlanner(),
        no_dist=True,
    )
    return state


@pytest.mark.filterwarnings("ignore")
def test_a_commit_comes_back_as_it_was(tmp_path: Path) -> None:
    state = saved(tmp_path, 7)
    found = load_from(tmp_path)
    assert torch.equal(found["a"], state["a"]) and found["b"] == state["b"]


@pytest.mark.filterwarnings("ignore")
def test_an_index_that_would_run_code_is_refused(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with pytest.raises(DamagedError, match=r"an index doesn't need (posix|os).system: not read"):
        read_index(pickle.dumps(Trap(ran)))
    for damaged in (b"", b"no pickle", pickle.dumps([1]), pickle.dumps(torch.Size([1]))[:-3]):
        with pytest.raises(DamagedError, match="expected DCP's index"):
            read_index(damaged)
    assert not ran.exists()


@pytest.mark.filterwarnings("ignore")
def test_a_value_that_would_run_code_is_refused(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    saved(tmp_path, Trap(ran))
    with pytest.raises((DamagedError, CheckpointException), match=r"b\.steps is no plain data"):
        load_from(tmp_path)
    assert not ran.exists()
