"""State from one rank to those that lack it, over the round's process group."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

TOGETHER = 1 << 20
"""Bytes. Tensors smaller than this travel in one message."""


def send(state: Any, ranks: Sequence[int]) -> None:
    """Sends `state` (nested dicts, lists and tensors) to each of `ranks`."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    large = [tensor for tensor in pickler.tensors if tensor.numel() >= TOGETHER]
    small = [tensor for tensor in pickler.tensors if tensor.numel() < TOGETHER]
    parts = [torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8), *small]
    together = torch.cat(parts)
    head = torch.tensor([len(parts[0]), len(together)])
    for rank in ranks:
        for tensor in (head, together, *large):
            dist.send(tensor, rank)


def receive(source: int) -> Any:
    """What rank `source` sends. Only from ranks of one's own job: unpickling trusts them."""
    head = torch.empty(2, dtype=torch.int64)
    dist.recv(head, source)
    skeleton, size = (int(number) for number in head)
    together = torch.empty(size, dtype=torch.uint8)
    dist.recv(together, source)
    file = io.BytesIO(together[:skeleton].numpy().tobytes())
    return _Unpickler(file, together[skeleton:], source).load()


class _Pickler(pickle.Pickler):
    """Tensors are left out of the pickle, in order."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        """Their bytes."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        self.tensors.append(flat)
        return (str(obj.dtype).removeprefix("torch."), tuple(obj.shape), flat.numel())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, small: torch.Tensor, source: int) -> None:
        super().__init__(file)
        self._small = small
        self._source = source

    def persistent_load(self, pid: Any) -> torch.Tensor:
        name, shape, size = pid
        dtype = getattr(torch, name)
        if size >= TOGETHER:
            # The pickle lists tensors in the order they were met, and so are the large ones sent.
            flat = torch.empty(size, dtype=torch.uint8)
            dist.recv(flat, self._source)
        else:
            # Copied: a slice may begin anywhere, a dtype's view must be aligned.
            flat, self._small = self._small[:size].clone(), self._small[size:]
        found: torch.Tensor = flat.view(dtype).reshape(shape)
        return found
