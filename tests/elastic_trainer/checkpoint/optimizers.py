"""Every optimizer that torch has, also those that it will have."""

from __future__ import annotations

import inspect
from collections.abc import Collection

import torch


def names_but(special: Collection[str]) -> list[str]:
    """Return the names of torch's optimizers, sorted, but for some."""
    return sorted(
        name
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind)
        and issubclass(kind, torch.optim.Optimizer)
        and kind is not torch.optim.Optimizer
        and name not in special
    )
