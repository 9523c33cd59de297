"""DenseParameters: a model's dense parameters on servers, as rows of a table like any other.

The table holds by how much parameters differ from their first values, so its rows begin with zeros.
The first values are in a second table, as what the first worker to come gave: all give theirs as
the same worker's first step, which a bucket takes once. So no two workers begin with other values,
whatever they were made with, and whoever comes later finds what the others began with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.row_optimizer import SGD, RowOptimizer
from elastic_trainer.embeddings.table import Table, TableSettings

WIDTH = 64
"""Numbers in a row: each goes to a server by its hash, so that all servers have some."""
NAME, FIRST = "dense parameters", "first values of dense parameters"
GIVER = "first values"
"""The worker as which all give them."""


class DenseParameters:
    """The parameters of a module, changed by its worker's gradients on the servers.

    It has what ServedTables asks of an ElasticEmbedding.

    Args:
        module: whose parameters they are; each forward pass of it begins with the newest.
        optimizer: of them.
        pull: asks the servers for rows of a table.
        give: has them apply an update to a table, as the first step of GIVER.

    Raises:
        TypeError: parameters aren't all of float32, or all of float64.
        ValueError: there are none.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: RowOptimizer,
        pull: Callable[[TableSettings, np.ndarray], torch.Tensor],
        give: Callable[[TableSettings, Update], None],
    ) -> None:
        self._module = module
        self._parameters = [one for one in module.parameters() if one.requires_grad]
        if not self._parameters:
            raise ValueError(f"dense is a {type(module).__name__} without parameters to train")
        dtypes = {one.dtype for one in self._parameters}
        dtype = dtypes.pop()
        if dtypes or dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"dense has parameters of {', '.join(map(str, sorted({dtype, *dtypes}, key=str)))}:"
                " expected torch.float32 or torch.float64 for all"
            )
        rows = -(-sum(one.numel() for one in self._parameters) // WIDTH)
        self._ids = np.arange(rows, dtype=np.int64)
        self.table = Table(TableSettings(NAME, WIDTH, optimizer, bound=0.0, dtype=dtype))
        """State of its settings only: its rows are on the servers."""
        self.first_settings = replace(self.table.settings, name=FIRST, optimizer=SGD(lr=1.0))
        self._first: torch.Tensor | None = None
        self._pull, self._give = pull, give
        self._fresh = False
        self.lr = optimizer.lr
        module.register_forward_pre_hook(lambda *_: self._before_forward())

    @property
    def name(self) -> str:
        return NAME

    def _before_forward(self) -> None:
        """Have the newest parameters, once a step; once a forward pass where none is trained."""
        if not self._fresh or not (torch.is_grad_enabled() or self._module.training):
            self._renew()

    def _renew(self) -> None:
        if self._first is None:
            self._first = self._agreed()
        newest = (self._first + self._pull(self.table.settings, self._ids)).view(-1)
        with torch.no_grad():
            for one, part in zip(self._parameters, self._cut(newest), strict=True):
                one.copy_(part)
        self._fresh = True

    def end_batch(self, counts: bool) -> None:
        """Do nothing: torch adds up the gradients of a step's batches."""

    def forget_batches(self) -> None:
        for one in self._parameters:
            one.grad = None
        self._first, self._fresh = None, False

    def push(self) -> Update:
        """Return the step's gradients as an update of the table; there are none from here on."""
        gradients = [one.grad for one in self._parameters]
        if all(one is None for one in gradients):
            return Update(self._ids[:0], self._ids[:0], self._rows([])[:0])
        found = self._rows(
            [
                torch.zeros_like(one) if part is None else part
                for one, part in zip(self._parameters, gradients, strict=True)
            ]
        )
        for one in self._parameters:
            one.grad = None
        self._fresh = False
        return Update(self._ids, np.ones(len(self._ids), dtype=np.int64), found)

    def _agreed(self) -> torch.Tensor:
        """Return the first values that all workers have; where nobody gave any, this one's."""
        found = self._pull(self.first_settings, self._ids)
        missing = (found == 0).all(1).numpy()
        if missing.any():
            ids = self._ids[missing]
            # SGD with a rate of 1 takes a gradient away.
            given = -self._rows([one.detach() for one in self._parameters])[missing]
            self._give(self.first_settings, Update(ids, np.ones(len(ids), dtype=np.int64), given))
            found = self._pull(self.first_settings, self._ids)
        return found

    def _rows(self, parts: list[torch.Tensor]) -> torch.Tensor:
        found = torch.zeros(len(self._ids), WIDTH, dtype=self.table.settings.dtype)
        if parts:
            flat = torch.cat([one.reshape(-1) for one in parts]).cpu()
            found.view(-1)[: len(flat)] = flat
        return found

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [one.numel() for one in self._parameters]
        parts = torch.split(flat[: sum(sizes)], sizes)
        return [part.view_as(one) for one, part in zip(self._parameters, parts, strict=True)]
