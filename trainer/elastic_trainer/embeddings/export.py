"""Exports of tables for serving: a base, then increments of the rows that changed since.

    export-000001/ export.json, one file a holder        kind "base": all rows
    export-000002/ …                                     kind "increment": what changed since 1

A holder's part names buckets that are whole in it, of which a reader forgets what it had; rows, as
weights without an optimizer's state; and ids that have no row any more. A bucket that a holder got
since the export before is whole, as nobody there knows what was evicted from it elsewhere. A
directory gets its name when all of it is written, so an export is whole or isn't one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash

from elastic_trainer.embeddings.changed_ids import ChangedIds, distinct
from elastic_trainer.embeddings.hashing import BUCKETS, Ids, buckets
from elastic_trainer.embeddings.table import Table, TableSettings

if TYPE_CHECKING:
    from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding

NAME = re.compile(r"export-(\d{6,})")
MANIFEST = "export.json"
BASE, INCREMENT = "base", "increment"


Changes = Mapping[str, tuple[np.ndarray, Ids]]
"""By table, the buckets that are whole, and which other ids changed."""


class ExportLog:
    """Part of one holder's tables in an export to one folder."""

    def __init__(self) -> None:
        self._number = 0
        self._watched: dict[str, _Watch] = {}

    def take(
        self, number: int, tables: Mapping[str, Table], held: np.ndarray, *, base: bool
    ) -> dict[str, Any]:
        """Return this holder's part of the export of this number, to be written with torch.save.
        Arguments are those of `find`."""
        found = {}
        for name, (whole, ids) in self.find(number, tables, held, base=base).items():
            all_of, some = tables[name].entries(whole.tolist()), tables[name].entries_of(ids)
            found[name] = part(
                tables[name].settings,
                whole,
                ids,
                ([all_of.ids], [all_of.weights]),
                ([some.ids], [some.weights]),
            )
        return found

    def find(
        self, number: int, tables: Mapping[str, Table], held: np.ndarray, *, base: bool
    ) -> Changes:
        """Return what has to be in this holder's part of the export of this number.

        Asked for the same number again, since the export came to nothing, it returns what changed
        until now.

        Args:
            held: by bucket, whether it is held here.
        """
        if number != self._number:
            for one in self._watched.values():
                one.settle()
        follows, self._number = number == self._number + 1, number
        found = {}
        for name, table in tables.items():
            watch = self._watched.get(name)
            if watch is None or watch.table is not table:
                watch = self._watched[name] = _Watch(table)
            found[name] = watch.take(held, everything=base or not (follows or watch.repeated))
        return found


class _Watch:
    """One table's changes since the last export that was made."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.repeated = False
        """There is something taken that isn't known to be in an export."""
        self._changed = ChangedIds(table)
        self._taken_ids = np.empty(0, dtype=np.int64)
        self._taken: tuple[np.ndarray, np.ndarray] | None = None
        self._held, self._drops = np.zeros(BUCKETS, dtype=bool), table.drops.copy()

    def settle(self) -> None:
        """Begin anew: what was taken is in an export."""
        if self._taken is not None:
            (self._held, self._drops), self._taken = self._taken, None
        self._taken_ids, self.repeated = self._taken_ids[:0], False

    def take(self, held: np.ndarray, *, everything: bool) -> tuple[np.ndarray, Ids]:
        """Return the buckets that are whole, and which other ids changed."""
        self.repeated = True
        self._taken = held.copy(), self.table.drops.copy()
        same = self._held & (self._drops == self.table.drops)
        whole = held if everything else held & ~same
        ids = self._taken_ids = distinct(np.concatenate([self._taken_ids, self._changed.take()]))
        return np.flatnonzero(whole), ids[(held & ~whole)[buckets(ids)]]


Columns = Sequence[list[torch.Tensor]]
"""Ids and weights, each in parts."""


def part(
    settings: TableSettings, whole: np.ndarray, ids: Ids, all_of: Columns, some: Columns
) -> dict[str, Any]:
    """Return a table's part of an export.

    Args:
        whole: buckets of which there are all rows, `all_of`.
        ids: others that changed, of which there are rows yet, `some`, or none any more.
    """
    removed = np.setdiff1d(ids, torch.cat(some[0]).numpy(), assume_unique=True)
    return {
        "settings": {
            "width": settings.width,
            "seed": settings.seed,
            "bound": settings.scale,
            "dtype": str(settings.dtype).removeprefix("torch."),
        },
        "buckets": torch.from_numpy(whole),
        "ids": [*all_of[0], *some[0]],
        "weights": [*all_of[1], *some[1]],
        "removed": torch.from_numpy(removed),
    }


# ---- folders


@dataclass(frozen=True)
class Export:
    """One that is in a folder."""

    number: int
    place: Path
    kind: str
    step: int
    files: Mapping[str, Any]
    """Size and xxh3 digest, by name."""


def exports(folder: Path) -> list[Export]:
    """Return those in the folder, oldest first. Raises OSError, ValueError."""
    found = []
    for one in folder.iterdir() if folder.exists() else ():
        if match := NAME.fullmatch(one.name):
            try:
                said = json.loads((one / MANIFEST).read_text())
            except FileNotFoundError:
                continue  # it is being removed
            found.append(Export(int(match[1]), one, said["kind"], said["step"], said["files"]))
    return sorted(found, key=lambda export: export.number)


def begin(folder: Path) -> tuple[Path, int, bool]:
    """Return a directory to write to, its number, and whether it can only be a base."""
    folder.mkdir(parents=True, exist_ok=True)
    known = exports(folder)
    place = folder / f".writing-{uuid.uuid4().hex}"
    place.mkdir()
    return place, known[-1].number + 1 if known else 1, not known


def publish(place: Path, number: int, kind: str, step: int, files: Mapping[str, Any]) -> Path:
    """Let the directory be the export of this number; remove those before the base before it.

    Raises:
        OSError: it can't be written, or another process has made one of this number.
    """
    said = {"kind": kind, "step": step, "files": files}
    with open(place / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(said, file)
        file.flush()
        os.fsync(file.fileno())
    target = place.parent / f"export-{number:06}"
    os.rename(place, target)
    if kind == BASE:
        bases = [one.number for one in exports(place.parent) if one.kind == BASE]
        for one in exports(place.parent):
            if len(bases) > 1 and one.number < bases[-2]:
                shutil.rmtree(one.place, ignore_errors=True)
    for stale in place.parent.glob(".writing-*"):
        shutil.rmtree(stale, ignore_errors=True)
    return target


def write_part(place: Path, name: str, part: Mapping[str, Any]) -> tuple[str, int, str]:
    """Write a holder's part; return its file's name, size and digest. Raises OSError."""
    path = place / f"{name}.pt"
    with open(path, "wb") as file:
        torch.save(dict(part), file)
        file.flush()
        os.fsync(file.fileno())
    return path.name, path.stat().st_size, digest(path)


def digest(path: Path) -> str:
    """Return the xxh3_64 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()


class TableExporter:
    """Exports a model's tables from the ranks that hold them.

        exporter = TableExporter([net.items, net.users], "/shared/serving")
        ...
        exporter.export(loop.steps)          # on all ranks, after a step

    Args:
        modules: ElasticEmbeddings, the same in the same order on all ranks, which hold their tables
            themselves; for those on servers there is ServedTables.export.
        folder: which all ranks see, and no other model's exports are in.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], folder: str | os.PathLike[str]) -> None:
        self._modules: Sequence[ElasticEmbedding] = modules  # type: ignore[assignment]
        self._folder = Path(folder)
        self._log = ExportLog()

    def export(self, step: int, *, base: bool = False) -> Path:
        """Write a base where there is none yet or one is wanted, else what changed since the last
        export; return its directory. On all ranks, between steps.

        Raises:
            OSError: on all ranks, where one couldn't write; the next export makes up for it.
        """
        group = self._modules[0].group
        begun, problem = None, ""
        if group.rank == 0:
            try:
                begun = begin(self._folder)
            except OSError as error:
                problem = str(error)
        begun, problem = group.from_rank(0, (begun, problem))
        if begun is None:
            raise OSError(f"cannot export to {self._folder}: {problem}")
        place, number, only_base = begun
        base = base or only_base
        held = np.zeros(BUCKETS, dtype=bool)
        held[self._modules[0].owners.held_by(group.rank)] = True
        part = self._log.take(
            number, {one.name: one.table for one in self._modules}, held, base=base
        )
        written = None
        try:
            written = write_part(place, str(group.rank), part)
        except OSError as error:
            problem = str(error)
        said = group.gather((written, problem))
        target = None
        if group.rank == 0 and all(one is not None for one, _ in said):
            files = {one[0]: one[1:] for one, _ in said if one is not None}
            try:
                target = publish(place, number, BASE if base else INCREMENT, step, files)
            except OSError as error:
                problem = str(error)
        if group.rank == 0 and target is None:
            shutil.rmtree(place, ignore_errors=True)
            problem = next((one for _, one in said if one), problem)
        target, problem = group.from_rank(0, (target, problem))
        if target is None:
            raise OSError(f"cannot export to {self._folder}: {problem}")
        return target
