"""The click models' data and report; training them is shown by docs/click-models.md."""

from __future__ import annotations

import sys

import pytest
import torch

from experiments.clicks import EXAMPLE, KINDS, Outcome, gap, report

criteo = sys.modules["criteo"]


def test_impressions_are_the_same_for_a_seed_and_of_criteos_shape() -> None:
    ids, clicked = EXAMPLE.generate(20_000)
    again, _ = EXAMPLE.generate(20_000)
    other, _ = EXAMPLE.generate(20_000, seed=1)
    assert ids.equal(again) and not ids.equal(other)
    assert ids.shape == (20_000, criteo.FEATURES) and ids.dtype == torch.int64
    assert 0.2 < float(clicked.mean()) < 0.3
    kinds = [len(column.unique()) for column in ids.T]
    assert kinds[criteo.COUNTS + 8] <= 3 and kinds[criteo.COUNTS + 2] > 5_000
    assert (ids < 0).any() and (ids > 0).any()


@pytest.mark.parametrize("model", EXAMPLE.MODELS)
def test_models_learn_the_truth(model: str) -> None:
    torch.manual_seed(0)
    ids, clicked = EXAMPLE.generate(6_000)
    net = EXAMPLE.MODELS[model]()
    tables = [one for one in net.modules() if hasattr(one, "table")]
    assert tables, "the experiment's tables are elastic"
    before = EXAMPLE.auc(net(ids[5000:]), clicked[5000:])
    from elastic_trainer import SplitTables

    split = SplitTables(tables)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
    for begin in range(0, 5000, 250):
        part = slice(begin, begin + 250)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(ids[part]), clicked[part])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        split.step()
    assert EXAMPLE.auc(net(ids[5000:]), clicked[5000:]) > max(before, 0.6)


def test_the_report_compares_with_the_first_kind() -> None:
    first = [Outcome((0.5, 0.7), 0, 0), Outcome((0.6, 0.8), 0, 0)]
    other = [Outcome((0.5, 0.71), 0, 128), Outcome((0.6, 0.79), 0, 0)]
    assert gap(first[0].curve, other[0].curve) == pytest.approx(0.005)
    text = report({KINDS[0]: first, KINDS[-1]: other})
    line = next(one for one in text.splitlines() if "2→4→2" in one)
    assert line.split("|")[3:9] == [
        " 0.75000 ",
        " +0.00000 ",
        " 0.00500 ",
        " 0.00000 ",
        " 0 ",
        " 128 ",
    ]
    assert "spread of 2 seeds (standard deviation): 0.07071" in text
