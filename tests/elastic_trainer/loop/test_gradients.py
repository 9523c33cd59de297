"""Gradients are those of a fixed world with the same global batch, after each change of the world.

DistributedDataParallel goes on dividing by the world that it was made for: a group that is changed
behind its back averages wrongly, and raises nothing.
"""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.loop.gradient_rounds import SCRIPT
from tests.elastic_trainer.torch_process import TorchProcess
from tests.simulated_gpu.libraries import SIMULATED

pytestmark = pytest.mark.process

CHANGES = 50
ALLOWED = 1e-6
"""The largest difference of gradients that are about 1."""


DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
COMPILES = pytest.mark.skipif(SIMULATED in os.environ, reason="a simulated GPU runs no kernels")


@DEVICES
def test_gradients_are_a_fixed_worlds_after_each_of_50_random_changes(device: str) -> None:
    assert train(device, CHANGES, processes=4) == {1, 2, 3, 4}


@COMPILES
@DEVICES
def test_a_compiled_models_are_too(device: str) -> None:
    backend = "eager" if device == "cpu" else "inductor"
    assert train(device, 6, processes=2, backend=backend) == {1, 2}


def train(device: str, changes: int, *, processes: int, backend: str = "") -> set[int]:
    """Compare the gradients in worlds that change; return the sizes of these worlds."""
    patience = timedelta(seconds=300)
    stores = [TCPStore("127.0.0.1", 0, is_master=True, timeout=patience) for _ in range(changes)]
    common = TCPStore("127.0.0.1", 0, is_master=True, timeout=patience)
    ports = [store.port for store in stores]
    ranks = [
        TorchProcess(SCRIPT, on(device, number), backend, number, processes, 1, common.port, *ports)
        for number in range(processes)
    ]
    try:
        found = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    said = [output.split() for output, _ in found]
    assert all(said), found
    assert max(float(worst) for worst, *_ in said) <= ALLOWED
    return {int(world) for _, _, *seen in said for world in seen}


def on(device: str, number: int) -> str:
    return device if device == "cpu" else f"{device}:{number % torch.cuda.device_count()}"
