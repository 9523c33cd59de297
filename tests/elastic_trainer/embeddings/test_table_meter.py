"""Tables say what they hold, and what is asked of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from elastic_trainer import ElasticEmbedding, SplitTables
from elastic_trainer.embeddings.id_samples import IdSamples
from elastic_trainer.embeddings.row_optimizer import SGD
from elastic_trainer.embeddings.table_meter import SAMPLED, WINDOW_SECONDS
from elastic_trainer.link.message import LINE_BYTES, Tables, encode
from elastic_trainer.metrics.table_load import TableLoad, decoded, encoded, skew, together


def test_a_rank_tells_each_window_what_it_holds_and_which_ids_are_hot() -> None:
    module = ElasticEmbedding("items", 2, optimizer=SGD(), evict_idle=3, evict_every=1)
    tables = SplitTables([module])
    first = (tables.loads(5.0) or {})["items"]
    assert (first.rows, first.updated_per_second) == (0, 0.0), (
        "so all know at once who holds tables"
    )
    for step in range(2 * SAMPLED):
        module(torch.tensor([[7, 7, 7, 100 + step]])).sum().backward()
        tables.step()
    assert tables.loads(4.9 + WINDOW_SECONDS) is None
    found = (tables.loads(5.0 + WINDOW_SECONDS) or {})["items"]
    assert found.rows == len(module.table) and found.bytes == module.table.nbytes
    assert found.admitted == 1 + 2 * SAMPLED and found.evicted == found.admitted - found.rows > 0
    assert found.updated == 4 * SAMPLED
    assert found.updated_per_second == pytest.approx(4 * SAMPLED / WINDOW_SECONDS)
    assert (found.hot_ids[0], found.hot_share[0]) == (7, 0.75)
    assert tables.loads(6.0 + WINDOW_SECONDS) is None
    later = (tables.loads(5.0 + 2 * WINDOW_SECONDS) or {})["items"]
    assert later.updated_per_second == 0 and later.hot_share == found.hot_share
    assert decoded(encoded({"items": found})) == {"items": found}


def test_parts_of_a_table_are_put_together_by_what_is_asked_of_them() -> None:
    one = TableLoad(3, 30, 4, 1, 9, 30.0, (5, 6), (0.5, 0.1))
    other = TableLoad(1, 10, 1, 0, 2, 10.0, (8,), (0.9,))
    all_ = together([one, other])
    assert (all_.rows, all_.bytes, all_.admitted, all_.evicted, all_.updated) == (4, 40, 5, 1, 11)
    assert all_.hot_ids == (5, 8, 6) and all_.hot_share == (0.375, 0.225, 0.075)
    assert skew([one.updated_per_second, other.updated_per_second]) == 1.5
    assert skew([]) == skew([0.0]) == 1.0


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"rows": "x", "hot_ids": [], "hot_share": []}}']
)
def test_what_is_no_load_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="expected loads of tables by name"):
        decoded(text)


def test_hot_ids_of_64_bits_survive() -> None:
    ids = (int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max))
    load = TableLoad(hot_ids=ids, hot_share=(0.2, 0.1))
    assert decoded(encoded({"t": load}))["t"].hot_ids == ids


def test_ids_that_nobody_asks_for_any_more_are_forgotten() -> None:
    samples = IdSamples()
    samples.add(np.array([7, 8]), np.array([3, 1]))
    for _ in range(1200):  # three hours of windows
        samples.hot(8)
        samples.halve()
    assert samples.hot(8) == ((), ())
    samples.add(np.array([9]), np.array([2]))
    assert samples.hot(8) == ((9,), (1.0,))


@pytest.mark.parametrize("tables", [1, 100, 3000])
def test_what_is_told_of_many_tables_fits_into_a_message(tables: int) -> None:
    hot = tuple(range(8))
    loads = {
        f"table-{number}": TableLoad(10**9 + number, hot_ids=hot, hot_share=(0.1,) * 8)
        for number in range(tables)
    }
    text = encoded(loads)
    assert len(encode(Tables(text))) < LINE_BYTES
    told = decoded(text)
    assert f"table-{tables - 1}" in told, "tables with most rows are told"
    assert all(one.rows == loads[name].rows for name, one in told.items())
    assert told == loads or tables > 1
