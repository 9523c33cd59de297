"""Whole buckets go from table to table as they lie, in pieces of any size, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from elastic_trainer.embeddings import bucket_exchange
from elastic_trainer.embeddings.bucket_exchange import swap_buckets
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.row_optimizer import SGD, Adam, RowOptimizer
from elastic_trainer.embeddings.table import Table, TableSettings

EVEN = list(range(0, BUCKETS, 2))


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """Be a rank that gives to itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def table(optimizer: RowOptimizer, *, trained: bool = True) -> Table:
    found = Table(TableSettings("items", 3, optimizer, admit_after=2, dtype=torch.float64))
    draw = np.random.default_rng(0)
    for _ in range(4 * trained):
        ids = np.unique(draw.integers(-(2**62), 2**62, 3_000))
        ids = np.unique(np.concatenate([ids, draw.integers(0, 2_000, 1_000)]))
        seen = draw.integers(1, 3, len(ids))
        gradients = torch.from_numpy(draw.standard_normal((len(ids), 3)))
        found.update(ids, seen, gradients, 0.1)
    return found


@pytest.mark.parametrize("most", [1, 100, 5_000, 1 << 20])
@pytest.mark.parametrize("optimizer", [SGD(), Adam()], ids=["no-state", "state"])
def test_what_comes_is_what_was_given(
    most: int, optimizer: RowOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_exchange, "LEAST_BYTES", most)
    monkeypatch.setattr(bucket_exchange, "MOST_BYTES", most)
    source, target = table(optimizer), table(optimizer, trained=False)
    some = EVEN[:10] if most == 1 else EVEN
    assert swap_buckets([(source, target)], [some], [some], said=7) == 7
    given = source.entries(some)
    assert len(given.ids) and len(given.candidates)
    for found, expected in zip(target.entries().tensors(), given.tensors(), strict=True):
        assert torch.equal(found, expected)
    more = given.ids.numpy()
    for one in (source, target):
        ones = np.ones(len(more), dtype=np.int64)
        one.step = 9
        one.update(more, ones, torch.ones(len(more), 3, dtype=torch.float64), 0.1)
    assert torch.equal(target.pull(more), source.pull(more))


def test_where_it_fails_nothing_of_what_comes_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = table(SGD()), table(SGD(), trained=False)
    whole = bucket_exchange._swap_pieces

    def broken(*pieces: object) -> None:
        whole(*pieces)  # type: ignore[arg-type]
        raise RuntimeError("a peer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(bucket_exchange, "_swap_pieces", broken)
        with pytest.raises(RuntimeError, match="a peer is lost"):
            swap_buckets([(source, target)], [EVEN], [EVEN])
    assert len(target) == 0 and not target.counts.any()
    swap_buckets([(source, target)], [EVEN], [EVEN])
    assert len(target) == len(source.entries(EVEN).ids)


def test_a_bucket_is_not_taken_twice() -> None:
    source = table(SGD())
    bucket = int(buckets(source.entries().ids.numpy()[:1])[0])
    with pytest.raises(ValueError, match=f"bucket {bucket} of table 'items' is held here already"):
        swap_buckets([(source, source)], [[bucket]], [[bucket]])
