"""Tells which tensors of two processes' states differ, by their digests."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import xxhash

from elastic_trainer.ranks.stream import in_callers_stream
from elastic_trainer.store.blob import Blob

_ENTRY = struct.Struct("<qq16s")


@dataclass(frozen=True, slots=True)
class Likeness:
    """Marks that a tensor of a blob is known by."""

    offset: int
    size: int
    """Bytes."""
    digest: bytes
    """xxh3, 128 bits."""


def likenesses(blob: Blob) -> list[Likeness]:
    """Return each tensor's, in the blob's order. The digests are made by torch's number of threads,
    large tensors first."""
    places = sorted(range(len(blob.tensors)), key=lambda one: -blob.tensors[one][1].nbytes)
    begin = in_callers_stream(lambda: None)
    with ThreadPoolExecutor(max(1, torch.get_num_threads()), initializer=begin) as threads:
        digests = dict(
            zip(places, threads.map(lambda one: _digest(blob, one), places), strict=True)
        )
    return [
        Likeness(offset, tensor.nbytes, digests[place])
        for place, (offset, tensor) in enumerate(blob.tensors)
    ]


def _digest(blob: Blob, place: int) -> bytes:
    # Large updates let go of the interpreter's lock.
    return xxhash.xxh3_128_digest(content(blob, place).numpy().data)


def content(blob: Blob, place: int) -> torch.Tensor:
    """Return the bytes (uint8) of a blob's tensor, in memory of the CPU: its own, where it has no
    gaps and is there."""
    return blob.tensors[place][1].contiguous().reshape(-1).view(torch.uint8).cpu()


def encode(told: Iterable[Likeness]) -> torch.Tensor:
    """Return them as bytes (uint8)."""
    packed = bytearray().join(_ENTRY.pack(one.offset, one.size, one.digest) for one in told)
    return torch.frombuffer(packed, dtype=torch.uint8) if packed else torch.empty(0).byte()


def decode(packed: torch.Tensor) -> list[Likeness]:
    """Raises ValueError where that is none."""
    if len(packed) % _ENTRY.size:
        raise ValueError(f"expected entries of {_ENTRY.size} bytes, found {len(packed)} bytes")
    return [Likeness(*entry) for entry in _ENTRY.iter_unpack(packed.numpy().tobytes())]


def differing(own: Sequence[Likeness], other: Sequence[Likeness]) -> list[int] | None:
    """Return the numbers of the tensors that differ; None where the states are laid out in another
    way, so that no tensor of one is known to be one of the other."""
    if [(one.offset, one.size) for one in own] != [(one.offset, one.size) for one in other]:
        return None
    pairs = enumerate(zip(own, other, strict=True))
    return [place for place, (mine, theirs) in pairs if mine.digest != theirs.digest]
