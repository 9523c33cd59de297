"""Readers of shards for ElasticStream: WebDataset's tars, JSON lines, Hugging Face's streams."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any


def tar_samples(path: str) -> Iterator[dict[str, Any]]:
    """Read a tar as WebDataset writes them: files that lie one after another and have the same name
    up to its first dot are a sample, `{"__key__": name, extension: bytes}`.

    Args:
        path: of a file, or a URL that fsspec knows; it is read from beginning to end.
    """
    sample: dict[str, Any] = {}
    with _open(path) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if not member.isfile():
                continue
            name = PurePosixPath(member.name)
            stem, _, extension = name.name.partition(".")
            key = str(name.with_name(stem))
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            content = archive.extractfile(member)
            assert content is not None  # of a file
            if extension in sample:
                raise ValueError(f"{path} has {member.name} twice: expected one of each extension")
            sample = {"__key__": key, **sample, extension: content.read()}
    if sample:
        yield sample


def json_lines(path: str) -> Iterator[Any]:
    """Read a file with a JSON value in each line; empty lines are left out.

    Args:
        path: of a file, or a URL that fsspec knows; `.gz`, `.xz`, `.bz2` and `.zst` are unpacked
            where fsspec is there.
    """
    with _open(path, unpack=True) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is no JSON: {error}") from None


class HuggingFaceShards:
    """The shards of a Hugging Face `IterableDataset`, for ElasticStream.

        shards = HuggingFaceShards(load_dataset("allenai/c4", "en", split="train", streaming=True))
        data = ElasticStream(shards.names, read=shards.read, batch_size=32, epochs=1)

    A shard is one of the dataset's own (`num_shards`). What was mapped or filtered before is
    applied to each; leave `shuffle` to the stream, since a shuffle of the dataset's is another one
    in each shard.

    Args:
        dataset: an `IterableDataset`, or anything that has `num_shards` and `shard`.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._shards = int(dataset.num_shards)

    @property
    def names(self) -> list[str]:
        """One for each shard, which tells their number too."""
        return [f"{number} of {self._shards}" for number in range(self._shards)]

    def read(self, name: str) -> Iterator[Any]:
        number, _, shards = name.partition(" of ")
        if int(shards) != self._shards:
            raise ValueError(f"the dataset has {self._shards} shards: expected {shards}, as before")
        return iter(self._dataset.shard(num_shards=self._shards, index=int(number)))


def _open(path: str, *, unpack: bool = False) -> IO[bytes]:
    packed = unpack and path.endswith((".gz", ".xz", ".bz2", ".zst"))
    if "://" not in path and not packed:
        return open(path, "rb")
    try:
        import fsspec
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{path} needs fsspec: install volcano-elastic-trainer[fsspec], and what fsspec needs "
            "for such a URL"
        ) from None
    opened: IO[bytes] = fsspec.open(path, "rb", compression="infer" if packed else None).open()
    return opened
