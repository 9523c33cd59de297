"""Exported tables: a reader has what training has, whatever happened between two exports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer import ElasticEmbedding, ServingTables, SplitTables, TableExporter
from elastic_trainer.embeddings.export import BASE, INCREMENT, ExportLog, begin, exports, publish
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.row_optimizer import Adagrad
from elastic_trainer.embeddings.table import Table, TableSettings
from elastic_trainer.parameter_server.files import write_file
from hypothesis import given, settings
from hypothesis import strategies as st

OPTIMIZER = Adagrad(lr=0.5)
SETTINGS = TableSettings(
    "t", 3, OPTIMIZER, dtype=torch.float64, evict_idle=3, evict_every=2, admit_after=2
)
IDS = np.arange(40, dtype=np.int64) * 10**15 - 7


def train(table: Table, ids: np.ndarray) -> None:
    ones = np.ones(len(ids), dtype=np.int64)
    table.update(ids, 2 * ones, torch.ones(len(ids), 3, dtype=torch.float64), 0.5)


def write(folder: Path, holders: list[tuple[ExportLog, Table, np.ndarray]], kind: str) -> None:
    place, number, only_base = begin(folder)
    base = only_base or kind == "base"
    files = {}
    for holder, (log, table, held) in enumerate(holders):
        part = log.take(number, {"t": table}, held, base=base)
        saved = write_file(str(place), str(holder), part)
        files[saved.name] = [saved.size, saved.digest]
    if kind == "comes to nothing":
        shutil.rmtree(place)
    else:
        publish(place, number, BASE if base else INCREMENT, table.step, files)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.sets(st.integers(0, 39), min_size=1, max_size=6)),
        st.tuples(st.just("move"), st.sets(st.integers(0, 39), min_size=1, max_size=4)),
        st.tuples(
            st.just("export"),
            st.sampled_from(["increment", "increment", "base", "comes to nothing"]),
        ),
        st.tuples(st.just("refresh"), st.none()),
        st.tuples(st.just("restart"), st.integers(0, 1)),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(EVENTS)
def test_a_reader_has_what_the_holders_had_when_they_exported(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("serving")
    tables = [Table(SETTINGS), Table(SETTINGS)]
    logs = [ExportLog(), ExportLog()]
    owner = np.zeros(BUCKETS, dtype=np.int64)
    reader: ServingTables | None = None
    for kind, given_ in [*events, ("export", "increment"), ("refresh", None)]:
        if kind == "train":
            ids = np.sort(IDS[sorted(given_)])
            for number, table in enumerate(tables):
                train(table, ids[owner[buckets(ids)] == number])
        elif kind == "move":
            for bucket in set(buckets(IDS[sorted(given_)]).tolist()):
                source = owner[bucket]
                tables[1 - source].put(tables[source].entries([bucket]))
                tables[source].drop([bucket])
                owner[bucket] = 1 - source
        elif kind == "export":
            holders = [(logs[n], tables[n], owner == n) for n in range(2)]
            write(folder, holders, given_)
        elif kind == "restart":
            logs[given_] = ExportLog()
        elif exports(folder):
            reader = reader or ServingTables(folder)
            reader.refresh()
    assert reader is not None
    expected = torch.zeros(len(IDS), 3, dtype=torch.float64)
    for number, table in enumerate(tables):
        mine = owner[buckets(IDS)] == number
        expected[torch.from_numpy(mine)] = table.pull(IDS[mine])
    assert torch.equal(reader.rows("t", IDS), expected)
    held = sum(len(table) for table in tables)
    assert len(reader._tables["t"]._rows) == held


def test_a_module_serves_what_it_was_trained_to(tmp_path: Path) -> None:
    net = ElasticEmbedding("items", 4, optimizer=OPTIMIZER, mode="mean", admit_after=2)
    tables, exporter = SplitTables([net]), TableExporter([net], tmp_path)
    draw = torch.Generator().manual_seed(0)
    reader = None
    for step in range(12):
        ids = torch.randint(-50, 50, (8, 3), generator=draw)
        net(ids).square().sum().backward()
        tables.step()
        if step % 3 == 2:
            exporter.export(step, base=step == 8)
            reader = reader or ServingTables(tmp_path)
            assert reader.refresh() == (step > 2)
            assert reader.step == step
    assert reader is not None
    ids = torch.arange(-60, 60)[:, None]
    served = reader.module("items", mode="mean")
    assert torch.equal(served(ids), net(ids)) and torch.equal(
        served(ids.view(torch.uint64)), net(ids)
    )
    kinds = [(one.number, one.kind) for one in exports(tmp_path)]
    assert kinds == [(1, BASE), (2, INCREMENT), (3, BASE), (4, INCREMENT)]
    exporter.export(12, base=True)
    assert [one.number for one in exports(tmp_path)] == [3, 4, 5]


def test_what_cannot_be_served_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no export: expected export-000001"):
        ServingTables(tmp_path)
    net = ElasticEmbedding("items", 4, optimizer=OPTIMIZER)
    place = TableExporter([net], tmp_path).export(0)
    reader = ServingTables(tmp_path)
    with pytest.raises(ValueError, match="no table 'users': expected one of items"):
        reader.rows("users", IDS)
    with pytest.raises(TypeError, match="ids for table 'items' are"):
        reader.module("items")(torch.tensor([[1.0]]))
    (place / "0.pt").write_bytes(b"else")
    with pytest.raises(ValueError, match=r"0\.pt is damaged: expected \d+ bytes"):
        ServingTables(tmp_path)


def test_a_folder_that_cannot_be_written_costs_no_change(tmp_path: Path) -> None:
    net = ElasticEmbedding("items", 4, optimizer=OPTIMIZER)
    exporter = TableExporter([net], tmp_path / "here")
    exporter.export(0)
    tables = SplitTables([net])
    net(torch.tensor([[5]])).sum().backward()
    tables.step()
    (tmp_path / "here").rename(tmp_path / "away")
    (tmp_path / "here").touch()
    with pytest.raises(OSError, match="cannot export to"):
        exporter.export(1)
    (tmp_path / "here").unlink()
    (tmp_path / "away").rename(tmp_path / "here")
    exporter.export(2)
    assert torch.equal(
        ServingTables(tmp_path / "here").rows("items", np.array([5])), net.table.pull(np.array([5]))
    )


def test_an_export_whose_columns_are_whole_is_read_too(tmp_path: Path) -> None:
    """Columns were written so by versions before."""
    table = Table(SETTINGS)
    train(table, IDS)
    place, number, _ = begin(tmp_path)
    part = ExportLog().take(number, {"t": table}, np.ones(BUCKETS, dtype=bool), base=True)
    for name in ("ids", "weights"):
        part["t"][name] = torch.cat(part["t"][name])
    saved = write_file(str(place), "0", part)
    publish(place, number, BASE, 1, {saved.name: [saved.size, saved.digest]})
    assert ServingTables(tmp_path).rows("t", IDS).equal(table.pull(IDS))
