"""No step counts whose collectives did not end well, as on a GPU those raise no errors."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from elastic_trainer.loop.step import Step, Surroundings

from tests.elastic_trainer.torch_process import TorchProcess


def test_what_a_script_says_of_numbers_that_a_broken_collective_left_is_undone_with_its_step() -> (
    None
):
    def undoes(error: Exception, *, silent: bool, lost: bool, applying: bool = False) -> bool:
        undone: list[str] = []

        def end() -> None:
            if applying:
                raise error

        stub: Any = SimpleNamespace
        around = Surroundings(
            stub(steps=3, last=True),
            stub(in_body=True),
            stub(silent=silent, failed=False, confirm=lambda: None),
            begin=nullcontext,
            push=lambda: None,
            end=end,
            undo=lambda: undone.append("step"),
            peer_lost=lambda: lost,
            forsaken=lambda: False,
            applies_together=applying,
        )
        try:
            with Step(around):
                if not applying:
                    raise error
        except type(error):
            assert not undone
        return bool(undone)

    broken = FloatingPointError("the loss is nan")
    assert undoes(broken, silent=True, lost=True)
    assert undoes(broken, silent=True, lost=True, applying=True)
    assert not undoes(broken, silent=True, lost=False), "it is the training's own"
    assert not undoes(broken, silent=False, lost=True), "gloo raises errors of its own"
    assert undoes(RuntimeError("gloo"), silent=False, lost=True)


SCRIPT = """
import sys
from pathlib import Path
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.loop.round_member import RoundMember

happened, broken = [], None

def confirm(member):
    happened.append("confirm")
    if len(happened) == broken:
        raise RuntimeError("collectives did not end well on rank 1")

def apply():
    happened.append("apply")
    loop.optimizer.step()

def make():
    net = torch.nn.Linear(2, 1)
    fully_shard(net)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)

RoundMember.confirm = confirm
net = torch.nn.Linear(2, 1)
replicated = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.01)}
for number, (kind, broken) in enumerate(
    (({"make": make}, 3), ({"make": make}, 4), ({"make": make}, 6), (replicated, 3))
):
    happened.clear()
    data = ElasticDataset(TensorDataset(torch.ones(6, 2)), batch_size=2, epochs=1)
    folder = Path(sys.argv[1]) / str(number)
    loop = ElasticLoop(folder, data=data, apply=apply, every=100, **kind)
    try:
        for (x,) in loop:
            with loop.step():
                (loop.weight * loop.model(x).square().mean()).backward()
    except RuntimeError as error:
        happened.append(str(error)[:11])
    print(loop.steps, *happened, flush=True)
    if number == 2:
        torch.distributed.destroy_process_group()
"""

SHARDED = ["confirm", "apply", "confirm"]
REPLICATED = ["confirm", "apply"]
REFUSED = ["collectives"]


@pytest.mark.process
def test_a_step_counts_once_its_collectives_are_confirmed_those_of_a_sharded_apply_too(
    tmp_path: object,
) -> None:
    process = TorchProcess(SCRIPT, tmp_path)
    try:
        said, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    found = [(int(steps), words) for steps, *words in map(str.split, said.splitlines())]
    assert found == [
        (0, SHARDED + REFUSED),
        (1, [*SHARDED, "confirm", *REFUSED]),
        (1, SHARDED + SHARDED + REFUSED),
        (1, [*REPLICATED, "confirm", *REFUSED]),
    ], errors
