"""Bags of ids: what a batch asks of a table, checked, and how its rows are pooled."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch.nn import functional

Mode = Literal["sum", "mean", "sequence"]

_OF_IDS = (torch.int64, torch.uint64, torch.int32)


def check_mode(mode: str) -> None:
    """Raises ValueError where there is no such mode."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode is {mode!r}: expected one of {', '.join(get_args(Mode))}")


def check_ids(ids: torch.Tensor, offsets: torch.Tensor | None, mode: Mode, table: str) -> None:
    """Raises TypeError or ValueError where torch.nn.EmbeddingBag's conventions aren't kept."""
    where = f"table {table!r}"
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _OF_IDS:
        found = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise TypeError(f"ids for {where} are {found}: expected a tensor of torch.int64")
    if mode == "sequence":
        if offsets is not None:
            raise ValueError(f"offsets for {where}, whose mode is 'sequence', which pools nothing")
        return
    if offsets is None:
        if ids.dim() != 2:
            raise ValueError(
                f"ids for {where} have {ids.dim()} dimensions and no offsets: expected "
                "(bags, ids in each), or one dimension and the offsets at which bags begin"
            )
        return
    if ids.dim() != 1 or offsets.dim() != 1:
        raise ValueError(
            f"ids and offsets for {where} have {ids.dim()} and {offsets.dim()} dimensions: "
            "expected 1 and 1"
        )
    if offsets.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"offsets for {where} are {offsets.dtype}: expected torch.int64")
    if not len(offsets):
        if len(ids):
            raise ValueError(f"{len(ids)} ids for {where} and no offsets: expected one a bag")
        return
    falls = bool((offsets[1:] < offsets[:-1]).any())
    if int(offsets[0]) or falls or int(offsets[-1]) > len(ids):
        raise ValueError(
            f"offsets for {where} begin with {int(offsets[0])} and end with {int(offsets[-1])}"
            f"{', and fall between' if falls else ''}: expected them to begin with 0, never fall, "
            f"and stay within {len(ids)} ids"
        )


def pool(
    rows: torch.Tensor,
    places: torch.Tensor,
    offsets: torch.Tensor | None,
    mode: Mode,
) -> torch.Tensor:
    """Return a row for each bag, or in mode "sequence" for each id. An empty bag's is zero.

    Args:
        rows: of the batch's ids, each once.
        places: where each id's row is, in the shape of the ids.
        offsets: where bags begin, if `places` has one dimension.
    """
    if not places.numel():
        width = rows.shape[1]
        shape = (
            (*places.shape, width)
            if mode == "sequence"
            else (len(places) if offsets is None else len(offsets), width)
        )
        return rows.new_zeros(shape) + rows.sum()  # of no row, but a part of the graph
    if mode == "sequence":
        return functional.embedding(places, rows)
    if offsets is not None:
        offsets = offsets.to(places.dtype)
    return functional.embedding_bag(places, rows, offsets, mode=mode)
