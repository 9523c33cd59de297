"""Readers of shards for ElasticStream: WebDataset's tars, JSON lines, Hugging Face's streams."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any

import numpy as np


def tar_samples(path: str) -> Iterator[dict[str, Any]]:
    """Read a tar as WebDataset writes them: files that lie one after another and have the same name
    up to its first dot are a sample, `{"__key__": name, extension: bytes}`, extensions in small
    letters. Files without an extension, and hidden ones, are of no sample.

    Args:
        path: of a file, or a URL that fsspec knows; it is read from beginning to end.
    """
    sample: dict[str, Any] = {}
    with _open(path) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if not member.isfile():
                continue
            name = PurePosixPath(member.name)
            stem, dot, extension = name.name.partition(".")
            if not stem or not dot:
                continue
            key, extension = str(name.with_name(stem)), extension.lower()
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
    applied to each, so `take`, `skip`, `batch` and interleaving count within a shard. Leave
    `shuffle` to the stream, since a shuffle of the dataset's is another one in each shard.

    Args:
        dataset: an `IterableDataset`, or anything that has `num_shards` and `shard`.

    Raises:
        ValueError: it is shuffled, or mixed of others, by chance alone: each process would have
            another order.
    """

    def __init__(self, dataset: Any) -> None:
        if any(map(_is_unseeded, _generators(getattr(dataset, "_ex_iterable", None)))):
            raise ValueError(
                "the dataset is shuffled, or interleaved with others, without a seed, so each "
                "process would have its samples in another order, and a restart lose some: "
                "expected none, as ElasticStream shuffles by itself, or seed=… where it was"
            )
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


def _generators(iterable: Any) -> Iterator[np.random.Generator]:
    """Yield the random generators of what a Hugging Face dataset iterates over."""
    if (generator := getattr(iterable, "generator", None)) is not None:
        yield generator
    inner = [getattr(iterable, "ex_iterable", None), *getattr(iterable, "ex_iterables", ())]
    for one in inner:
        if one is not None:
            yield from _generators(one)


def _is_unseeded(generator: np.random.Generator) -> bool:
    # numpy keeps the seed that it was given as the entropy; without one it draws 128 bits.
    entropy = getattr(generator.bit_generator.seed_seq, "entropy", None)
    return isinstance(entropy, int) and entropy >= 1 << 64


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
