"""Shards as they lie in folders: tars, JSON lines, Hugging Face's."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from elastic_trainer.data.shard_files import HuggingFaceShards, json_lines, tar_samples
from elastic_trainer.data.stream import ElasticStream
from elastic_trainer.data.unit_reader import ShardError


def write_tar(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


def test_a_tar_gives_its_samples(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        {"x/1.png": b"p", "x/1.seg.json": b"{}", "x/2.png": b"q", "y/2.png": b""},
    )
    assert list(tar_samples(path)) == [
        {"__key__": "x/1", "png": b"p", "seg.json": b"{}"},
        {"__key__": "x/2", "png": b"q"},
        {"__key__": "y/2", "png": b""},
    ]
    assert list(tar_samples(write_tar(tmp_path / "empty.tar", {}))) == []


def test_files_that_are_of_no_sample_are_passed_over_as_by_webdataset(tmp_path: Path) -> None:
    names = ["README", "__info__", "._1.png", "d/.DS_Store", "1.PNG", "1.Seg.JSON", "./2.png"]
    path = write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"x"))
    assert list(tar_samples(path)) == [
        {"__key__": "1", "png": b"x", "seg.json": b"x"},
        {"__key__": "2", "png": b"x"},
    ]
    twice = write_tar(tmp_path / "b.tar", {"1.png": b"", "1.PNG": b""})
    with pytest.raises(ValueError, match=r"has 1\.PNG twice"):
        list(tar_samples(twice))


def test_a_tar_over_a_url(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.txt": b"one"})
    assert list(tar_samples(f"file://{path}")) == [{"__key__": "1", "txt": b"one"}]


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two"}\n')
    assert [line["text"] for line in json_lines(str(path))] == ["one", "two"]


@pytest.mark.parametrize("name", ["cut.tar", "bad.jsonl", "missing.jsonl"])
def test_a_shard_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLCANO_ELASTIC_STORAGE_RETRY_SECONDS", "0")
    whole = Path(write_tar(tmp_path / "whole.tar", {"1.txt": b"x" * 2000}))
    (tmp_path / "cut.tar").write_bytes(whole.read_bytes()[:1000])
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n{"text"\n')
    read = tar_samples if name.endswith(".tar") else json_lines
    data = ElasticStream([str(tmp_path / name)], read=read, batch_size=1, epochs=1)
    with pytest.raises(ShardError, match=name):
        list(data)


class Numbers:
    """Stands in for a Hugging Face IterableDataset: the methods that ElasticStream calls."""

    num_shards = 3

    def shard(self, num_shards: int, index: int) -> Iterator[dict[str, int]]:
        return ({"n": 10 * index + n} for n in range(num_shards + index))


def test_the_shards_of_a_hugging_face_stream(tmp_path: Path) -> None:
    shards = HuggingFaceShards(Numbers())
    data = ElasticStream(shards.names, read=shards.read, batch_size=2, epochs=1)
    seen = [n for batch in data for n in batch["n"].tolist()]
    assert sorted(seen) == [0, 1, 2, 10, 11, 12, 13, 20, 21, 22, 23, 24]
    assert json.dumps(data.state_dict())
    with pytest.raises(ValueError, match="has 3 shards: expected 4"):
        shards.read("1 of 4")


class Shuffled:
    """Stands in for what an IterableDataset iterates over, once it is shuffled and mapped."""

    def __init__(self, seed: int | None) -> None:
        self.generator = np.random.default_rng(seed)


class Mapped:
    def __init__(self, *inner: object) -> None:
        self.ex_iterable, *self.ex_iterables = inner


@pytest.mark.parametrize("seed", [0, 42, 2**63])
def test_a_hugging_face_stream_that_is_shuffled_by_chance_alone_is_refused(seed: int) -> None:
    mixed = Numbers()
    mixed._ex_iterable = Mapped(None, Mapped(Shuffled(seed)), Shuffled(None))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="without a seed"):
        HuggingFaceShards(mixed)
    seeded = Numbers()
    seeded._ex_iterable = Mapped(Shuffled(seed))  # type: ignore[attr-defined]
    assert HuggingFaceShards(seeded).names == ["0 of 3", "1 of 3", "2 of 3"]
