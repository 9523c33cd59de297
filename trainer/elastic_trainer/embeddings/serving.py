"""ServingTables: exported tables in a process that serves a model, and trains nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastic_trainer.embeddings.bag import Mode, check_ids, check_mode, pool
from elastic_trainer.embeddings.bucket_rows import NO_ROW, BucketRows
from elastic_trainer.embeddings.export import BASE, Export, digest, exports
from elastic_trainer.embeddings.hashing import Ids, first_values


class ServingTables:
    """The rows of a folder's newest exports.

        tables = ServingTables("/shared/serving")
        net.items = tables.module("items", mode="mean")    # where ElasticEmbedding was in training
        ...
        tables.refresh()                                   # now and then

    For one thread: refresh between requests.

    Raises:
        FileNotFoundError: no export is there yet.
        ValueError: a file isn't what was written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._tables: dict[str, _Rows] = {}
        self.number = 0
        """Number of the export that is served."""
        self.step = -1
        """Step of training at which it was made."""
        self.refresh()
        if not self.number:
            raise FileNotFoundError(f"{self._folder} has no export: expected export-000001")

    def refresh(self) -> bool:
        """Read what is new: increments, or a base where increments since are missing. Return
        whether there was anything. What can't be read changes nothing."""
        found = exports(self._folder)
        newer = [one for one in found if one.number > self.number]
        if not newer:
            return False
        if [one.number for one in newer] != list(range(self.number + 1, newer[-1].number + 1)) or (
            not self.number
        ):
            last = max((one.number for one in found if one.kind == BASE), default=0)
            newer = [one for one in found if one.number >= last]
        for one in newer:
            parts = _read(one)
            if one.kind == BASE:
                self._tables = {}
            for part in parts:
                for name, content in part.items():
                    if name not in self._tables:
                        self._tables[name] = _Rows(name, content["settings"])
                    self._tables[name].put(content)
            self.number, self.step = one.number, one.step
        return True

    def rows(self, name: str, ids: Ids) -> torch.Tensor:
        """Return a row for each id; for one that has none, what its row would begin with."""
        if name not in self._tables:
            raise ValueError(f"no table {name!r}: expected one of {', '.join(self._tables)}")
        return self._tables[name].find(ids)

    def module(self, name: str, *, mode: Mode = "sum") -> torch.nn.Module:
        """Return what takes the place of this table's ElasticEmbedding."""
        check_mode(mode)
        return _Served(self, name, mode)


class _Rows:
    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self._name, self._settings = name, settings
        self._rows = BucketRows(weights=(np.dtype(settings["dtype"]), settings["width"]))

    def put(self, content: dict[str, Any]) -> None:
        self._rows.drop(content["buckets"].numpy())
        removed = content["removed"].numpy()
        self._rows.remove(removed[self._rows.find(removed) != NO_ROW])
        for ids, weights in zip(_parts(content["ids"]), _parts(content["weights"]), strict=True):
            rows = self._rows.put(ids.numpy())
            self._rows.columns["weights"].numbers[rows] = weights.numpy()

    def find(self, ids: Ids) -> torch.Tensor:
        rows = self._rows.find(ids)
        found = self._rows.columns["weights"].tensor.index_select(0, torch.from_numpy(rows))
        unknown = np.flatnonzero(rows == NO_ROW)
        if len(unknown):
            first = first_values(
                ids[unknown],
                self._settings["width"],
                seed=self._settings["seed"],
                table=self._name,
                bound=self._settings["bound"],
            )
            found[torch.from_numpy(unknown)] = torch.from_numpy(first).to(found.dtype)
        return found


def _parts(column: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what was written in parts, or, by a version before, in one."""
    return [column] if isinstance(column, torch.Tensor) else column


class _Served(torch.nn.Module):
    def __init__(self, tables: ServingTables, name: str, mode: Mode) -> None:
        super().__init__()
        self._tables, self.name, self.mode = tables, name, mode

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        check_ids(ids, offsets, self.mode, self.name)
        if ids.dtype == torch.uint64:
            ids = ids.view(torch.int64)
        flat = ids.reshape(-1).to("cpu", torch.int64).numpy()
        unique, inverse = np.unique(flat, return_inverse=True)
        rows = self._tables.rows(self.name, unique).to(ids.device)
        places = torch.from_numpy(inverse.reshape(ids.shape)).to(ids.device)
        return pool(rows, places, offsets, self.mode)


def _read(export: Export) -> list[dict[str, Any]]:
    parts = []
    for name, (size, expected) in export.files.items():
        path = export.place / name
        if path.stat().st_size != size or digest(path) != expected:
            raise ValueError(f"{path} is damaged: expected {size} bytes with digest {expected}")
        parts.append(torch.load(path, map_location="cpu", weights_only=True))
    return parts
