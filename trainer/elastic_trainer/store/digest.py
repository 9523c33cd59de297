"""The digest of what a state has alike on every rank: the model's parameters, and what the
optimizer keeps for them.

A tensor's is the sum of its memory as 64-bit words, modulo 2^64, which all devices make at their
memory's speed: a word that differs in any way differs by other than a multiple of that.

Buffers are left out, as batch norm's running means are each rank's own, and so is `extra`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils._pytree import tree_leaves

from elastic_trainer.store.blob import flat

REPLICATED = "replicated"
"""Key of a state: names of parameters, and the optimizer's numbers of those, that every rank has
alike; not there where no such promise is made."""
_WORD = 8


def digest_of_replicated(state: Mapping[str, Any]) -> str:
    """Return the digest, equal for equal values wherever they lie; empty for no such promise."""
    if REPLICATED not in state:
        return ""
    sums = [one for tensor in replicated(state) for one in _sums(tensor)]
    by_device: dict[torch.device, list[int]] = {}
    for place, one in enumerate(sums):
        by_device.setdefault(one.device, []).append(place)
    found = torch.zeros(len(sums), dtype=torch.int64)
    for places in by_device.values():  # at once: each answer waits for what the device does
        found[places] = torch.stack([sums[place] for place in places]).cpu()
    return xxhash.xxh3_64_hexdigest(found.numpy().tobytes())


def replicated(state: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that every rank has alike, in the same order everywhere."""
    names, numbers = state[REPLICATED]["model"], state[REPLICATED]["optimizer"]
    yield from (state["model"][name] for name in names)
    held = state["optimizer"].get("state") or {}  # an optimizer that isn't torch's may have none
    yield from _tensors(held[number] for number in numbers if number in held)


def _tensors(parts: Iterable[Any]) -> Iterator[torch.Tensor]:
    for part in parts:
        leaves = tree_leaves(dict(sorted(part.items())) if isinstance(part, dict) else part)
        yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _sums(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the sums of a tensor's whole words and of the bytes that are left."""
    memory = flat(tensor.detach())
    content = (tensor.detach().contiguous() if memory is None else memory).reshape(-1)
    if content.storage_offset() * content.element_size() % _WORD:
        content = content.clone()  # words begin at multiples of their size
    raw = content.view(torch.uint8)
    whole = raw.numel() // _WORD * _WORD
    yield _sum(raw[:whole].view(torch.int64))
    if whole < raw.numel():
        rest = raw.new_zeros(_WORD)
        rest[: raw.numel() - whole] = raw[whole:]
        yield _sum(rest.view(torch.int64))


def _sum(words: torch.Tensor) -> torch.Tensor:
    if words.device.type != "cpu":
        return words.sum()
    # One thread has the memory's speed, and keeps no core from training.
    return torch.tensor(np.add.reduce(words.numpy()))
