"""Servers' rows in files: each writes its own, and any number of servers goes on from them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastic_trainer.embeddings import export
from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.embeddings.table import Entries
from elastic_trainer.parameter_server.holder import Holder
from elastic_trainer.store.folder import sync_directory


@dataclass(frozen=True)
class Saved:
    """A file that was written."""

    name: str
    size: int
    digest: str


def write_file(place: str, name: str, contents: Mapping[str, Any]) -> Saved:
    """Write a server's rows, whole or not at all. Raises OSError.

    Args:
        name: how the file's name begins. Whoever asks again, while this is being written, gets a
            file of its own.
    """
    folder, name = Path(place), f"{name}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        saved = Saved(*export.write_part(folder, name, contents))
        sync_directory(folder)
    except BaseException:
        (folder / f"{name}.pt").unlink(missing_ok=True)
        raise
    return saved


def read_saves(saves: Sequence[Sequence[tuple[str, int, str]]]) -> Holder:
    """Return a holder of all buckets, from the files of a base and of the saves after it, each of
    these paths, sizes and digests.

    Raises:
        OSError: one can't be read.
        ValueError: one isn't what was written, those of a save don't make all buckets together, or
            a save before it is missing.
    """
    holder = Holder()
    for number, files in enumerate(saves):
        holder.held[:] = False
        steps: dict[str, int] = {}
        for name, size, digest in files:
            found = _read(Path(name), size, digest)
            held, whole = found["buckets"].numpy(), found["whole"].numpy()
            if holder.held[held].any():
                raise ValueError(f"{name} holds buckets that another file holds, too")
            if not number and len(whole) < len(held):
                raise ValueError(f"{name} has changes alone: expected the saves before it, too")
            holder.held[held] = True
            for table in holder.tables.values():
                table.drop(whole.tolist())
            for text, (step, tensors) in found["tables"].items():
                table = holder.add_table(text)
                table.put(Entries(*map(_whole, tensors)))
                table_name = table.settings.name
                steps[table_name] = max(steps.get(table_name, 0), step)
            for text, (ids, tensors) in found["changes"].items():
                holder.add_table(text).replace(ids.numpy(), Entries(*map(_whole, tensors)))
        if not holder.held.all():
            raise ValueError(f"the files hold {holder.held.sum()} buckets: expected {BUCKETS}")
        for table_name, step in steps.items():
            holder.tables[table_name].step = step
    return holder


def cut(
    files: Sequence[tuple[str, int, str]], counts: Sequence[int]
) -> list[Sequence[tuple[str, int, str]]]:
    """Return so many of the files at a time. Raises ValueError where they are others in all."""
    if sum(counts) != len(files) or any(count < 1 for count in counts):
        raise ValueError(f"{len(files)} files: expected {list(counts)} of the saves")
    ends = np.cumsum(counts).tolist()
    return [files[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _read(path: Path, size: int, digest: str) -> dict[str, Any]:
    if path.stat().st_size != size or export.digest(path) != digest:
        raise ValueError(f"{path} is damaged: expected {size} bytes with digest {digest}")
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    # Of a version that knew no changes.
    return {"whole": found["buckets"], "changes": {}, **found}


def _whole(column: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    """Return a column that was written in parts, or, by a version before, in one."""
    return column if isinstance(column, torch.Tensor) else torch.cat(column)
