"""Tables in storage: each rank's buckets in a file of its own, which a commit names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from elastic_trainer.checkpoint.recovery import Identity
from elastic_trainer.embeddings.table import Entries
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.attachment import Attachments
from elastic_trainer.store.errors import StorageError, UnavailableError
from elastic_trainer.store.folder import FileRecord
from elastic_trainer.store.storage import Storage

KIND = "tables"

Described = Mapping[str, Any]


def write_tables(
    storage: Storage,
    group: ProcessGroup,
    identity: Identity,
    parts: Mapping[str, tuple[Described, int, Entries]],
) -> dict[str, Any]:
    """Write them on all ranks; return what a commit has to say to find them again.

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
        table: (dict(described), step, entries.tensors())
        for table, (described, step, entries) in parts.items()
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
    if group.rank == 0:
        try:
            place = attachments.publish(place, identity)
        except StorageError as error:
            problem = str(error)
    place, problem = group.from_rank(0, (place, problem))
    if problem is not None:
        raise UnavailableError(problem)
    files = {one: [record.size, record.xxh3] for one, record, _ in said if record is not None}
    return {"place": place, "files": files}


def read_tables(
    storage: Storage, files: Mapping[str, Any], expected: Mapping[str, Described]
) -> Iterator[tuple[dict[str, int], dict[str, Entries]]]:
    """Yield each file's tables: their steps and their entries, by name.

    Raises:
        StorageError: a file can't be read, is damaged, or is of other tables.
    """
    attachments = Attachments(storage, KIND)
    for name, (size, digest) in files["files"].items():
        content: Any = attachments.load(f"{files['place']}/{name}", FileRecord(size, digest))
        found = torch.load(content, map_location="cpu", weights_only=True)
        described = {table: one for table, (one, _, _) in found.items()}
        if described != dict(expected):
            raise StorageError(
                f"{storage.location}/{files['place']} holds other tables: expected "
                f"{list(expected.values())}, found {list(described.values())}; restore the script "
                "that wrote them, or start in a new folder"
            )
        yield (
            {table: step for table, (_, step, _) in found.items()},
            {table: Entries(*tensors) for table, (_, _, tensors) in found.items()},
        )
