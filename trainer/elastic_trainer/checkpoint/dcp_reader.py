"""Reads torch.distributed.checkpoint's format without running what its pickles name.

DCP unpickles its index (`.metadata`) and every value that is no tensor with all that Python can
import, so whoever can write a folder runs code in each process that reads it. Digests don't help:
the marker with them is in the same folder. Here an index may hold what `_INDEX_GLOBALS` lists, and
a value what `torch.load(weights_only=True)` takes.
"""

from __future__ import annotations

import io
import pickle
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint._nested_dict import set_element  # type: ignore[attr-defined]
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from elastic_trainer.checkpoint.dcp_files import AnsweringFileSystem
from elastic_trainer.store.answer import Calls
from elastic_trainer.store.errors import DamagedError
from elastic_trainer.store.folder import is_url

_INDEX_GLOBALS = {
    **{
        (kind.__module__, kind.__name__): kind
        for kind in (
            metadata.BytesStorageMetadata,
            metadata.ChunkStorageMetadata,
            metadata.Metadata,
            metadata.MetadataIndex,
            metadata.StorageMeta,
            metadata.TensorProperties,
            metadata.TensorStorageMetadata,
            metadata._MEM_FORMAT_ENCODING,
            filesystem._StorageInfo,
            filesystem._StoragePrefix,
        )
    },
    ("collections", "OrderedDict"): dict,
    ("pathlib", "PosixPath"): PurePosixPath,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    **{
        ("torch", str(one).removeprefix("torch.")): one
        for one in vars(torch).values()
        if isinstance(one, torch.dtype)
    },
}


class _IndexUnpickler(pickle.Unpickler):
    """Knows an index's own classes and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _INDEX_GLOBALS[module, name]
        except KeyError:
            raise DamagedError(f"an index doesn't need {module}.{name}: not read") from None


class PlainPlanner(DefaultLoadPlanner):
    """Loads values that are no tensors as plain data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Sets a value of the loaded state. Raises DamagedError for one that isn't plain."""
        name = read_item.dest_index.fqn
        try:
            found = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise DamagedError(f"the value of {name} is no plain data: {error}") from None
        set_element(self.original_state_dict, self.mappings[name], found)


def read_index(content: bytes) -> Metadata:
    """Return the index that a commit's `.metadata` holds.

    Args:
        content: of the file, verified.

    Raises:
        DamagedError: it names what no index needs, or is none.
    """
    try:
        found = _IndexUnpickler(io.BytesIO(content)).load()
    except DamagedError:
        raise
    except Exception as error:  # a damaged pickle raises whatever it likes
        raise DamagedError(f"expected DCP's index, found what can't be read: {error!r}") from None
    if not isinstance(found, Metadata):
        raise DamagedError(f"expected DCP's index, found a {type(found).__name__}")
    return found


def stated_parameters(index: Metadata) -> frozenset[str] | None:
    """Return the parameters that a commit has an optimizer's state of; None where its index doesn't
    say what its names are made of."""
    ways = index.planner_data
    if not isinstance(ways, dict):
        return None
    start = ("optimizer", "state")
    return frozenset(str(way[2]) for way in ways.values() if tuple(way[:2]) == start)


def reader(place: str, index: Metadata, calls: Calls) -> Any:
    """Return DCP's reader of the folder or URL `place`, that takes the index as given; `calls` are
    those to a folder's file system."""
    base: Any = filesystem.FileSystemReader
    if is_url(place):
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader

        base = FsspecReader

    class Reader(base):  # type: ignore[misc]
        def read_metadata(self, *_: Any, **__: Any) -> Metadata:
            index.storage_meta = index.storage_meta or StorageMeta()
            index.storage_meta.load_id = self.load_id
            return index

    made = Reader(place)
    if not is_url(place):
        made.fs = AnsweringFileSystem(calls)
    return made
