"""A small training that tests compare across worlds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.loop.loop import ElasticLoop
from torch.utils.data import TensorDataset


def training(folder: Path, **given: Any) -> ElasticLoop:
    torch.manual_seed(0)
    inputs = torch.randn(500, 6, dtype=torch.float64)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    net.double()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = ElasticDataset(
        TensorDataset(inputs, inputs.square().sum(1, keepdim=True)), global_batch=20, **given
    )
    return ElasticLoop(folder, model=net, optimizer=optimizer, data=data, every=30)


def train(loop: ElasticLoop, each_step: Callable[[], object] = lambda: None) -> list[float]:
    for x, y in loop:
        with loop.step():
            (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
        if loop.stepped:
            each_step()
    flat = torch.cat([p.detach().flatten() for p in loop.module.parameters()])
    return [float(number) for number in flat]
