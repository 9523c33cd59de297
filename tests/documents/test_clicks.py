"""The click models' data and report; training them is shown by docs/click-models.md."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from elastic_trainer.shards.ranges import Ranges
from hypothesis import given
from hypothesis import strategies as st

from experiments.clicks.run import EXAMPLE, Outcome
from experiments.clicks.section import PLANS, gap, report
from experiments.clicks.turns import Turns
from tests.documents import clicks_run
from tests.elastic_trainer import nursery

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


def test_the_report_compares_with_the_first_plan() -> None:
    parts = tuple(0.7 + 0.001 * n for n in range(10))
    first = [Outcome(curve, parts, 0, 0, 30.0) for curve in ((0.5, 0.5, 0.7), (0.6, 0.6, 0.8))]
    other = [
        Outcome((0.5, 0.5, 0.71), parts, 0, 128, 30.0),
        Outcome((0.6, 0.6, 0.79), parts[::-1], 0, 0, 30.0),
    ]
    assert gap(first[0].curve, other[0].curve) == pytest.approx(0.01 / 3)
    text = report(
        [
            (replace(plan, seed=seed), outcome)
            for plan, outcomes in ((PLANS[0], first), (PLANS[-1], other))
            for seed, outcome in enumerate(outcomes)
        ]
    )
    line = next(one for one in text.splitlines() if "2→4→2" in one)
    assert line.split("|")[3:10] == [
        " 0.75000 ",
        " +0.00000 ",
        " 0.00333 ",
        " 0.00000 ",
        " 0.01000 ",
        " 0 ",
        " 128 ",
    ]
    assert "(standard deviation) asked: 0; target 0.0707" in text
    assert "mean gap of 2→4→2 workers, 2→4→3 servers: 0.0033; target 0.0005: **missed**" in text
    assert "(standard error over ten parts): 0.00096" in text
    assert "4 runs of 61,440 samples, 2 minutes in all" in text


@given(st.integers(0, 2**32))
def test_a_lease_that_was_handed_out_twice_is_pushed_once(seed: int) -> None:
    """And by another worker, if its own is killed."""
    draw, turns, consumed, until = Random(seed), Turns(), Ranges(), 16
    asking = [*range(10), *draw.choices(range(10), k=6)]
    pushing: list[int] = []

    def samples(lease: int) -> Ranges:
        return Ranges.of(4 * lease, 4 * lease + 4)

    while asking or pushing:
        granted = [one for one in asking if turns.decide(samples(one), consumed, until)]
        if granted and (not pushing or draw.random() < 0.5):
            one = draw.choice(granted)
            asking.remove(one)
            turns.begin(samples(one))
            pushing.append(one)
        elif pushing:
            one = pushing.pop(draw.randrange(len(pushing)))
            turns.end(samples(one))
            assert not consumed & samples(one), "trained on twice"
            if draw.random() < 0.2:  # killed
                asking.append(one)
            else:
                consumed |= samples(one)
        else:
            assert len(consumed) == until, "everybody waits"
            until += 16
        asking = [one for one in asking if turns.decide(samples(one), consumed, until) is not False]
        assert len(consumed) + 4 * len(pushing) <= until
    assert consumed == Ranges.of(0, 40)


@pytest.mark.process
def test_no_sample_is_lost_while_workers_are_killed_and_servers_come(tmp_path: Path) -> None:
    """By the ledger's audit, on disk; what killed workers had pushed may be pushed once more."""
    told, said = tmp_path / "told", tmp_path / "log"
    with said.open("wb") as log:
        words = ["-m", "tests.documents.clicks_run", str(told)]
        process = nursery.shared().start(words, os.environ, log)
        assert process.wait(300) == 0, said.read_text()[-3000:]
    found = json.loads(told.read_text())
    assert found["wrong"] == 0
    assert 0 <= found["twice"] <= 2 * clicks_run.PLAN.batch, "two workers were killed"
    assert len(found["curve"]) == clicks_run.PLAN.points and found["curve"][-1] > 0.55
