"""Exchanges between holders in a step: ids and rows on the way forward, gradients on the way
back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from elastic_trainer.embeddings.hashing import Ids, buckets
from elastic_trainer.embeddings.owner_map import OwnerMap
from elastic_trainer.ranks.process_group import ProcessGroup


def swap(part: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
    """Give each rank its rows of `part`, in the order of ranks; return what all gave this one.

    Args:
        part: of any number of columns.
        sent: how many rows each rank gets.
        received: how many each gives.
    """
    found = part.new_empty((sum(received), *part.shape[1:]))
    width = int(part[0:1].numel()) if part.shape[0] else int(found[0:1].numel())
    if part.dim() > 1 and not part.shape[1]:
        return found  # a table without optimizer state
    dist.all_to_all_single(
        found.view(-1),
        part.contiguous().view(-1),
        [width * one for one in received],
        [width * one for one in sent],
    )
    return found


def swap_counts(sent: Sequence[int]) -> list[int]:
    """Tell each rank how many rows it gets; return how many each gives."""
    found = torch.empty(len(sent), dtype=torch.int64)
    dist.all_to_all_single(found, torch.tensor(sent, dtype=torch.int64))
    return [int(one) for one in found]


@dataclass
class Pull:
    """The rows of a forward pass, whose gradients go back the way they came."""

    rows: torch.Tensor
    """A leaf, a row for each id of this rank's batch; in the order of holders."""
    seen: NDArray[np.int64]
    """How often each came."""
    sent: list[int]
    """How many of them each holder has."""
    asked: Ids
    """The ids that others, and this rank, asked of this holder."""
    received: list[int]
    """How many of them each rank did."""
    counts: bool = True
    """False where the batch only kept pace, and had no samples of its own."""

    def push(self, group: ProcessGroup, counts: bool) -> tuple[NDArray[np.int64], torch.Tensor]:
        """Return how often `asked` were seen, and their gradients as summed by each rank.

        Args:
            counts: False as `self.counts`.
        """
        gradients = self.rows.grad
        if gradients is None:
            gradients = torch.zeros_like(self.rows)
        gradients = gradients.cpu()
        seen = torch.from_numpy(self.seen if counts and self.counts else np.zeros_like(self.seen))
        if group.world > 1:
            gradients = swap(gradients, self.sent, self.received)
            seen = swap(seen, self.sent, self.received)
        return seen.numpy(), gradients


class RowSource(Protocol):
    """Where rows come from: a Table, or servers that hold it."""

    def pull(self, ids: Ids) -> torch.Tensor:
        """Return a row for each id, no two alike and ascending."""


def pull(
    table: RowSource, owners: OwnerMap, group: ProcessGroup, ids: torch.Tensor
) -> tuple[Pull, torch.Tensor]:
    """Ask each id's holder for its row, once; return them, and where the row of each of `ids` is.

    On all ranks of the round.
    """
    if ids.dtype == torch.uint64:
        ids = ids.view(torch.int64)  # the same 64 bits
    flat = ids.detach().reshape(-1).to("cpu", torch.int64).numpy()
    unique, inverse, seen = np.unique(flat, return_inverse=True, return_counts=True)
    if group.world == 1:
        sent = received = [len(unique)]
        rows, asked = table.pull(unique), unique
    else:
        owner = owners.of(buckets(unique))
        order = np.argsort(owner, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        inverse, seen = place[inverse], seen[order]
        sent = [int(one) for one in np.bincount(owner, minlength=group.world)]
        received = swap_counts(sent)
        asked = swap(torch.from_numpy(unique[order]), sent, received).numpy()
        rows = swap(table.pull(asked), received, sent)
    leaf = rows.to(ids.device).requires_grad_()
    places = torch.from_numpy(inverse.reshape(ids.shape)).to(ids.device)
    return Pull(leaf, seen.astype(np.int64), sent, asked, received), places


@dataclass
class Update:
    """A step's change of a table's rows that are held here."""

    ids: Ids
    seen: NDArray[np.int64]
    gradients: torch.Tensor


def summed(
    asked: Sequence[Ids],
    seen: Sequence[NDArray[np.int64]],
    gradients: Sequence[torch.Tensor],
    width: int,
    dtype: torch.dtype,
    share: float,
) -> Update:
    """Return the update of a step whose pulls were these: each id once, its gradients added up.

    Args:
        share: what gradients are multiplied with, as DistributedDataParallel averages the others'.
    """
    if len(asked) == 1 and share == 1.0:  # one rank's, whose ids differ
        return _of_samples(Update(asked[0], seen[0], gradients[0]))
    if not asked:
        nothing = np.empty(0, dtype=np.int64)
        return Update(nothing, nothing, torch.empty(0, width, dtype=dtype))
    ids, inverse = np.unique(np.concatenate(asked), return_inverse=True)
    total = np.bincount(inverse, weights=np.concatenate(seen), minlength=len(ids))
    sums = torch.zeros(len(ids), width, dtype=dtype)
    sums.index_add_(0, torch.from_numpy(inverse), torch.cat(list(gradients)), alpha=share)
    return _of_samples(Update(ids, total.astype(np.int64), sums))


def _of_samples(update: Update) -> Update:
    """Leave out ids that came only in batches without samples of their own."""
    came = update.seen > 0
    if came.all():
        return update
    return Update(update.ids[came], update.seen[came], update.gradients[torch.from_numpy(came)])
