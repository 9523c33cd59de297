"""ElasticEmbedding: a module whose table is split over the ranks, and takes any 64-bit id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from elastic_trainer.checkpoint.split_state import SplitState
from elastic_trainer.data.elastic_data import ElasticData
from elastic_trainer.embeddings.bag import Mode, check_ids, check_mode, pool
from elastic_trainer.embeddings.exchange import Pull, RowSource, Update, pull, summed
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.embeddings.row_optimizer import RowOptimizer
from elastic_trainer.embeddings.split_tables import SplitTables
from elastic_trainer.embeddings.table import Table, TableSettings
from elastic_trainer.ranks.process_group import ProcessGroup


class ElasticEmbedding(torch.nn.Module):
    """Like torch.nn.EmbeddingBag, for ids that nobody counted beforehand.

        self.items = ElasticEmbedding("items", 32, optimizer=Adagrad(lr=0.05))
        ...
        pooled = self.items(ids, offsets)

    Rows are made when their id is first trained on, the same ones whoever holds them. Each rank
    holds those of its buckets, and updates them itself, with `optimizer`; the module has no
    parameters, so the model's own optimizer knows nothing of it. ElasticLoop keeps it in step with
    the rest, over joins, leaves and losses; without it, see SplitTables.

    `forward` communicates, so all ranks call it equally often: evaluate on all of them.

    Args:
        name: of the table, which its rows' first values depend on; no two of a model alike.
        width: numbers in a row.
        optimizer: of the rows: SGD, Adagrad, RowwiseAdagrad or Adam of row_optimizer.py.
        mode: "sum" or "mean" of each bag's rows, or "sequence": a row for each id.
        backup: keep each row in a second rank's memory, too, which makes the same updates: a lost
            rank costs no step then, twice the memory and nearly twice the updates. For all tables
            of a model, or none.
        seed, bound, dtype, admit_after, evict_idle, max_rows, evict_every: as TableSettings'.

    Raises:
        ValueError, TypeError: one of them can't be.
    """

    make_split_state: Callable[[Sequence[torch.nn.Module]], SplitState] = staticmethod(SplitTables)
    """Called by ElasticLoop with all of a model's."""

    def __init__(
        self,
        name: str,
        width: int,
        *,
        optimizer: RowOptimizer,
        mode: Mode = "sum",
        backup: bool = False,
        seed: int = 0,
        bound: float | None = None,
        dtype: torch.dtype = torch.float32,
        admit_after: int = 1,
        evict_idle: int | None = None,
        max_rows: int | None = None,
        evict_every: int = 100,
    ) -> None:
        super().__init__()
        check_mode(mode)
        self.mode: Mode = mode
        self.backup = backup
        self.table = Table(
            TableSettings(
                name,
                width,
                optimizer,
                seed,
                bound,
                dtype,
                admit_after,
                evict_idle,
                max_rows,
                evict_every,
            )
        )
        self.rows: RowSource = self.table
        """Where rows are held: here and on the other ranks, or on servers (ServedTables)."""
        self.lr = optimizer.lr
        """The rate of the next step; not saved, so set it where it changes."""
        self.owners = OwnerMap.even(0, 1)
        self.group = ProcessGroup()
        """The ranks that `owners` counts."""
        self._data: ElasticData | None = None
        self._pulls: list[Pull] = []
        self._batches: list[tuple[list[Pull], bool]] = []

    @property
    def name(self) -> str:
        return self.table.settings.name

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Return a row for each bag; one of zeros for an empty bag.

        Args:
            ids: (bags, ids in each), or all bags' in one dimension; any shape in mode "sequence".
            offsets: where each bag begins, if ids have one dimension.
        """
        check_ids(ids, offsets, self.mode, self.name)
        found, places = pull(self.rows, self.owners, self.group, ids)
        if torch.is_grad_enabled() and self.training:
            found.counts = self._data is None or self._data.weight != 0
            self._pulls.append(found)
        return pool(found.rows, places, offsets, self.mode)

    def extra_repr(self) -> str:
        settings = self.table.settings
        return f"{settings.name!r}, {settings.width}, mode={self.mode!r}, {settings.optimizer}"

    # ---- for SplitTables, on all ranks

    def follow(self, data: ElasticData) -> None:
        self._data = data

    def begin_batch(self) -> None:
        self._pulls = []

    def end_batch(self, counts: bool) -> None:
        self._batches.append((self._pulls, counts))
        self._pulls = []

    def forget_batches(self) -> None:
        self._pulls, self._batches = [], []

    def push(self) -> Update:
        """Send the gradients of the step's batches to the rows' holders; return what arrives."""
        asked, seen, gradients = [], [], []
        for pulls, counts in self._batches:
            for one in pulls:
                often, sums = one.push(self.group, counts)
                asked.append(one.asked)
                seen.append(often)
                gradients.append(sums)
        settings = self.table.settings
        share = 1 / self.group.world
        found = summed(asked, seen, gradients, settings.width, settings.dtype, share)
        self.forget_batches()
        return found

    def apply_update(self, update: Update) -> None:
        self.table.update(update.ids, update.seen, update.gradients, self.lr)
