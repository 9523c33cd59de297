"""The digest of what a state has alike on every rank: the model's parameters, and what the
optimizer keeps for them.

A tensor's is xxh3 of its bytes, which come from a GPU for it as they do for a save.

Buffers are left out, as batch norm's running means are each rank's own, and so is `extra`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import xxhash
from torch.utils._pytree import tree_leaves

from elastic_trainer.store.blob import flat

REPLICATED = "replicated"
"""Key of a state: names of parameters, and the optimizer's numbers of those, that every rank has
alike; not there where no such promise is made."""


def digest_of_replicated(state: Mapping[str, Any]) -> str:
    """Return the digest, equal for equal values wherever they lie; empty for no such promise."""
    if REPLICATED not in state:
        return ""
    digests = b"".join(digest_of_bytes(tensor) for tensor in replicated(state))
    return xxhash.xxh3_64_hexdigest(digests)


def digest_of_bytes(tensor: torch.Tensor) -> bytes:
    """Return xxh3 (128 bits) of a tensor's bytes, in the order of its memory where that has no
    gaps."""
    held = tensor.detach()
    memory = flat(held)
    content = (held.contiguous() if memory is None else memory).reshape(-1).view(torch.uint8)
    return xxhash.xxh3_128_digest(content.cpu().numpy().data)  # lets go of the interpreter's lock


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
