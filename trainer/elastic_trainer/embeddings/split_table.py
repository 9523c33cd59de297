"""A table whose rows the ranks hold between them, as whoever keeps it in step sees it."""

from __future__ import annotations

from typing import Protocol

from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.embeddings.exchange import Update
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.embeddings.table import Table
from elastic_trainer.ranks.process_group import ProcessGroup


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
