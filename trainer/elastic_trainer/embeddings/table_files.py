"""Tables in storage: each rank's buckets in a file of its own, which a commit names.

All rows of them, or those that changed since the commit before: then it names the files of that
one, too, and of all before it, back to one with all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from elastic_trainer.checkpoint.model_state import MismatchError
from elastic_trainer.checkpoint.recovery import Identity
from elastic_trainer.embeddings.table import Entries
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.attachment import Attachments
from elastic_trainer.store.errors import StorageError, UnavailableError
from elastic_trainer.store.folder import FileRecord
from elastic_trainer.store.storage import Storage

KIND = "tables"

Described = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A rank's rows of a table."""

    described: Described
    step: int
    entries: Entries
    ids: torch.Tensor | None = None
    """Rows whose entries these are, all of them; None: they are all that the rank has."""


def write_tables(
    storage: Storage,
    group: ProcessGroup,
    identity: Identity,
    parts: Mapping[str, Part],
    base: Identity | None = None,
) -> tuple[dict[str, Any], bool]:
    """Write them on all ranks; return what a commit has to say to find them again, and whether no
    commit stands on another base.

    Args:
        base: of the save with all rows that these are changes to; None: these are all.

    Raises:
        StorageError: on every rank, if any could not write its part.
    """
    attachments = Attachments(storage, KIND)
    place, problem = None, None
    if group.rank == 0:
        try:
            place = attachments.begin(identity)
        except StorageError as error:
            problem = str(error)
    place, problem = group.from_rank(0, (place, problem))
    if place is None:
        raise UnavailableError(str(problem))
    name, record = f"{group.rank}.pt", None
    content = {
        table: (dict(part.described), part.step, part.entries.tensors(), part.ids)
        for table, part in parts.items()
    }
    try:
        record = storage.write_file(
            f"{place}/{name}", lambda file: torch.save(content, cast(Any, file))
        )
    except StorageError as error:
        problem = str(error)
    said = group.gather((name, record, problem))
    problems = [error for _, _, error in said if error is not None]
    if problems:
        if group.rank == 0:
            storage.abandon(place)
        raise UnavailableError(problems[0])
    published = None
    if group.rank == 0:
        try:
            published = attachments.publish(place, identity, base)
        except StorageError as error:
            problem = str(error)
    published, problem = group.from_rank(0, (published, problem))
    if published is None:
        raise UnavailableError(str(problem))
    files = {one: [record.size, record.xxh3] for one, record, _ in said if record is not None}
    return {"place": published.place, "files": files}, published.alone


def read_tables(
    storage: Storage, files: Mapping[str, Any], expected: Mapping[str, Described]
) -> Iterator[dict[str, Part]]:
    """Yield each file's tables by name, those of the save with all rows first.

    Raises:
        StorageError: a file can't be read, or is damaged.
        MismatchError: it is of other tables.
    """
    attachments = Attachments(storage, KIND)
    for save in (*files.get("before", ()), files):
        for name, (size, digest) in save["files"].items():
            content: Any = attachments.load(f"{save['place']}/{name}", FileRecord(size, digest))
            found = torch.load(content, map_location="cpu", weights_only=True)
            parts = {
                table: Part(described, step, Entries(*tensors), *ids)
                for table, (described, step, tensors, *ids) in found.items()
            }
            described = {table: part.described for table, part in parts.items()}
            if described != dict(expected):
                raise MismatchError(
                    f"{storage.location}/{save['place']} holds other tables: expected "
                    f"{list(expected.values())}, found {list(described.values())}; restore the "
                    "script that wrote them, or start in a new folder"
                )
            yield parts
