"""Exchanges of whole buckets between ranks: rows go as they lie, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from elastic_trainer.embeddings.bucket_rows import BucketRows, Memory
from elastic_trainer.embeddings.exchange import swap
from elastic_trainer.embeddings.table import Table

MOST_BYTES = 32 << 20
"""That a rank sends at a time; more, where that would be less than LEAST_BYTES to each."""
LEAST_BYTES = 1 << 20

Counts = list[NDArray[np.int64]]
"""By BucketRows, how many rows each of some buckets has."""


@dataclass(frozen=True)
class _Segment:
    """Rows `begin` to `end` of a bucket."""

    rows: BucketRows
    bucket: int
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return (self.end - self.begin) * self.rows.row_bytes

    def parts(self, memory: Memory) -> list[tuple[Memory, Memory]]:
        """Return where the rows lie, and the places in `memory` for each part of them."""
        found, begin = [], 0
        for lying in self.rows.lying(self.bucket, self.begin, self.end):
            found.append((lying, memory[begin : begin + len(lying)]))
            begin += len(lying)
        return found


Pieces = list[list[_Segment]]


def swap_buckets(
    tables: Sequence[tuple[Table, Table]],
    goes: Sequence[Sequence[int]],
    comes: Sequence[Sequence[int]],
    said: int = 0,
) -> int:
    """Give each rank buckets of the pairs' first tables, and hold in the second ones, which have
    nothing of them, what comes. On all ranks. What is given stays here, too.

    Where it fails nothing of what comes is held.

    Args:
        goes: by rank, the buckets that it gets from this one.
        comes: by rank, those that this one gets from it, in the giver's order.
        said: a number that goes along, which saves the ranks a round of messages.

    Returns:
        The greatest that any rank has said.

    Raises:
        RuntimeError: a rank is lost.
        ValueError: some of what comes is held already.
    """
    givers = [rows for table, _ in tables for rows in table.stores]
    takers = [rows for _, table in tables for rows in table.stores]
    which = np.array([bucket for some in comes for bucket in some], dtype=np.int64)
    for _, table in tables:
        if len(taken := which[table.counts[which] > 0]):
            raise ValueError(
                f"bucket {taken[0]} of table {table.settings.name!r} is held here already: "
                "expected each bucket to come from one holder"
            )
    sent = [_counts(givers, some) for some in goes]
    most = max(LEAST_BYTES, MOST_BYTES // len(goes))
    out = [_pieces(givers, some, of, most) for some, of in zip(goes, sent, strict=True)]
    shapes = [(len(givers), len(some)) for some in comes]
    received, rounds, most_said = _swap_counts(sent, shapes, max(map(len, out)), said)
    came = [np.concatenate(of) for of in zip(*received, strict=True)]

    def reserve() -> None:
        for rows, of in zip(takers, came, strict=True):
            rows.reserve(which, of)

    try:
        _swap_pieces(
            out,
            [_pieces(takers, some, of, most) for some, of in zip(comes, received, strict=True)],
            rounds,
            reserve,
        )
        for rows, of in zip(takers, came, strict=True):
            rows.hold(which, of)
    except BaseException:
        for _, table in tables:
            table.drop(which.tolist())
        raise
    return most_said


def _counts(stores: Sequence[BucketRows], some: Sequence[int]) -> Counts:
    return [one.counts[np.asarray(some, dtype=np.int64)] for one in stores]


def _swap_counts(
    sent: Sequence[Counts], shapes: Sequence[tuple[int, int]], pieces: int, said: int
) -> tuple[list[Counts], int, int]:
    """Tell each rank how many rows it gets, in how many pieces this one sends the most, and what it
    says; return what all tell this one, the most pieces of any, and the greatest that any says."""
    first = np.array([pieces, said])
    numbers = torch.from_numpy(np.concatenate([one for of in sent for one in (first, *of)]))
    sizes = [2 + a * b for a, b in shapes]
    found = swap(numbers, [2 + sum(map(len, of)) for of in sent], sizes).numpy()
    counts: list[Counts] = []
    begin, most, most_said = 0, 0, said
    for size, shape in zip(sizes, shapes, strict=True):
        most, most_said = max(most, int(found[begin])), max(most_said, int(found[begin + 1]))
        counts.append(list(found[begin + 2 : begin + size].reshape(shape)))
        begin += size
    return counts, most, most_said


def _pieces(stores: Sequence[BucketRows], some: Sequence[int], counts: Counts, most: int) -> Pieces:
    """Cut these buckets' rows into pieces of so many bytes at most, or one row."""
    pieces: Pieces = []
    left = 0
    for rows, of in zip(stores, counts, strict=True):
        for bucket, count in zip(some, of.tolist(), strict=True):
            begin = 0
            while begin < count:
                if left < rows.row_bytes:
                    pieces.append([])
                    left = max(most, rows.row_bytes)
                end = min(count, begin + left // rows.row_bytes)
                segment = _Segment(rows, bucket, begin, end)
                pieces[-1].append(segment)
                begin, left = end, left - segment.nbytes
    return pieces


def _swap_pieces(
    goes: Sequence[Pieces], comes: Sequence[Pieces], rounds: int, reserve: Callable[[], None]
) -> None:
    """Send each rank its pieces, one at a time, and take what comes while the next ones do.

    Args:
        rounds: the most pieces that any rank sends to another.
        reserve: has room for all that comes. It is called once the first pieces are on their way,
            as taking the memory takes about as long as they do.
    """
    before: tuple[list[_Segment], torch.Tensor] | None = None
    for number in range(rounds):
        out = [one[number] if number < len(one) else [] for one in goes]
        into = [one[number] if number < len(one) else [] for one in comes]
        sent, received = (
            [sum(one.nbytes for one in some) for some in all_] for all_ in (out, into)
        )
        given, taken = (torch.empty(sum(sizes), dtype=torch.uint8) for sizes in (sent, received))
        _write([one for some in out for one in some], given)
        work: Any = dist.all_to_all_single(taken, given, received, sent, async_op=True)
        if before is None:
            reserve()
        else:
            _read(*before)
        work.wait()
        before = [one for some in into for one in some], taken
    if before is not None:
        _read(*before)


def _write(segments: Sequence[_Segment], memory: torch.Tensor) -> None:
    for one, part in _places(segments, memory):
        for lying, place in one.parts(part):
            place[:] = lying


def _read(segments: Sequence[_Segment], memory: torch.Tensor) -> None:
    for one, part in _places(segments, memory):
        for lying, place in one.parts(part):
            lying[:] = place


def _places(segments: Sequence[_Segment], memory: torch.Tensor) -> list[tuple[_Segment, Memory]]:
    found, begin, places = [], 0, memory.numpy()
    for one in segments:
        end = begin + one.nbytes
        found.append((one, places[begin:end]))
        begin = end
    return found
