"""A table whose rows the ranks hold between them, as whoever keeps it in step sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.embeddings.table import Table
from elastic_trainer.ranks.process_group import ProcessGroup


@runtime_checkable
class SplitTable(Protocol):
    """One table of a model; ElasticEmbedding is one. All ranks call its methods alike."""

    table: Table
    """The rows that are held here."""
    owners: OwnerMap
    group: ProcessGroup
    """The ranks that `owners` counts."""
    lr: float
    """The rate of the next step."""
    backup: bool
    """Each row is in a second rank's memory, too."""

    @property
    def name(self) -> str: ...

    def follow(self, data: ElasticData) -> None:
        """Count no ids of batches whose weight is 0 there."""

    def begin_batch(self) -> None: ...

    def end_batch(self, counts: bool) -> None: ...

    def forget_batches(self) -> None: ...

    def push(self) -> Update:
        """Send the gradients of the step's batches to the rows' holders; return what arrives."""
        ...

    def apply_update(self, update: Update) -> None: ...


def check_modules(modules: Sequence[torch.nn.Module]) -> list[SplitTable]:
    """Return the tables that these modules are. Raises TypeError where one is none, and ValueError
    where two have one name."""
    tables: list[SplitTable] = []
    for one in modules:
        if not isinstance(one, SplitTable):
            raise TypeError(f"modules: expected ElasticEmbeddings, found {type(one).__name__}")
        tables.append(one)
    names = [one.name for one in tables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"several tables are named {', '.join(twice)}: expected a name of its own for each; "
            "for several features of one table, call one ElasticEmbedding for each"
        )
    return tables
