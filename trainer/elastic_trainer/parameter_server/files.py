"""Servers' rows in files: each writes its own, and any number of servers goes on from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from elastic_trainer.embeddings.hashing import BUCKETS
from elastic_trainer.embeddings.table import Entries, Table
from elastic_trainer.parameter_server.holder import Buckets, Holder
from elastic_trainer.parameter_server.wire import write_settings


@dataclass(frozen=True)
class Saved:
    """A file that was written."""

    name: str
    size: int
    digest: str


def copy_tables(tables: Mapping[str, Table], held: Buckets) -> dict[str, Any]:
    """Return a copy of these buckets' rows."""
    found = {
        write_settings(one.settings): (one.step, one.entries(held.tolist()).tensors())
        for one in tables.values()
    }
    return {"buckets": torch.from_numpy(held), "tables": found}


def write_file(place: str, name: str, contents: Mapping[str, Any]) -> Saved:
    """Write a server's rows, whole or not at all. Raises OSError."""
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / f"{name}.pt", folder / f"{name}.part"
    try:
        with open(part, "wb") as file:
            torch.save(dict(contents), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return Saved(path.name, path.stat().st_size, _digest(path))


def read_files(files: Sequence[tuple[str, int, str]]) -> Holder:
    """Return a holder of all buckets, from these paths, sizes and digests.

    Raises:
        OSError: one can't be read.
        ValueError: one isn't what was written, or they don't make all buckets together.
    """
    holder = Holder()
    for name, size, digest in files:
        path = Path(name)
        if path.stat().st_size != size or _digest(path) != digest:
            raise ValueError(f"{path} is damaged: expected {size} bytes with digest {digest}")
        found = torch.load(path, map_location="cpu", weights_only=True)
        held = found["buckets"].numpy()
        if holder.held[held].any():
            raise ValueError(f"{path} holds buckets that another file holds, too")
        holder.held[held] = True
        for text, (step, tensors) in found["tables"].items():
            table = holder.add_table(text)
            table.put(Entries(*tensors))
            table.step = max(table.step, step)
    if not holder.held.all():
        raise ValueError(f"the files hold {holder.held.sum()} buckets: expected {BUCKETS}")
    return holder


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()
