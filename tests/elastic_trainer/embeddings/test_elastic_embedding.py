"""ElasticEmbedding in one process, beside torch's own modules and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from elastic_trainer.embeddings.elastic_embedding import ElasticEmbedding
from elastic_trainer.embeddings.row_optimizer import (
    SGD,
    Adagrad,
    Adam,
    RowOptimizer,
    RowwiseAdagrad,
)
from elastic_trainer.embeddings.split_tables import SplitTables

WIDTH, ROWS = 6, 40


class _Rowwise(torch.optim.Optimizer):
    """fbgemm's EXACT_ROWWISE_ADAGRAD, dense."""

    def __init__(self, parameters: Any, lr: float, eps: float = 1e-8) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                gradient = one.grad.to_dense()
                total = self.state[one].setdefault("sum", torch.zeros(ROWS, 1).double())
                total += gradient.square().mean(1, keepdim=True)
                one.data -= group["lr"] * gradient / (total.sqrt() + group["eps"])


OPTIMIZERS: dict[str, tuple[RowOptimizer, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": (SGD(lr=0.1), lambda ps: torch.optim.SGD(ps, lr=0.1)),
    "Adagrad": (
        Adagrad(lr=0.1, initial_accumulator_value=0.2),
        lambda ps: torch.optim.Adagrad(ps, lr=0.1, initial_accumulator_value=0.2),
    ),
    "RowwiseAdagrad": (RowwiseAdagrad(lr=0.1), lambda ps: _Rowwise(ps, lr=0.1)),
    "Adam": (Adam(lr=0.1), lambda ps: torch.optim.SparseAdam(ps, lr=0.1)),
}


PLAIN = SGD()


def elastic(optimizer: RowOptimizer = PLAIN, **given: Any) -> ElasticEmbedding:
    return ElasticEmbedding("t", WIDTH, optimizer=optimizer, dtype=torch.float64, **given)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("mode", ["sum", "mean", "sequence"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rows_are_those_of_torchs_sparse_modules_and_optimizers(kind: str, mode: Any) -> None:
    optimizer, make = OPTIMIZERS[kind]
    ours = elastic(optimizer, mode=mode)
    tables = SplitTables([ours])
    start = ours.table.pull(torch.arange(ROWS).numpy()).clone()
    theirs: torch.nn.Module
    if mode == "sequence":
        theirs = torch.nn.Embedding.from_pretrained(start, freeze=False, sparse=True)
    else:
        theirs = torch.nn.EmbeddingBag.from_pretrained(
            start, freeze=False, mode=mode, sparse=True, include_last_offset=False
        )
    reference = make(theirs.parameters())
    generator = torch.Generator().manual_seed(3)
    for step in range(30):
        ids = torch.randint(0, ROWS, (24,), generator=generator)
        offsets = torch.tensor([0, 3, 3, 10, 20])  # the second bag is empty
        given = (ids.view(4, 6),) if mode == "sequence" or step % 2 else (ids, offsets)
        target = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
        outputs = ours(*given), theirs(*given)
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
        reference.zero_grad()
        for output in outputs:
            (output - target).square().sum().backward()
        reference.step()
        tables.step()
    found = ours.table.pull(torch.arange(ROWS).numpy())
    torch.testing.assert_close(found, next(theirs.parameters()).detach(), rtol=0, atol=1e-12)


def test_several_batches_of_a_step_are_one_gradient() -> None:
    one, other = elastic(Adagrad(lr=0.1)), elastic(Adagrad(lr=0.1))
    ids = torch.tensor([[1, 2, 2], [2, 5, 9]])
    one(ids).sum().backward()
    SplitTables([one]).step()
    tables = SplitTables([other])
    for half in ids.split(1):
        tables.begin_batch()
        other(half).sum().backward()
        tables.end_batch(counts=True)
    tables.push((0, 1))
    tables.apply()
    asked = torch.tensor([1, 2, 5, 9]).numpy()
    torch.testing.assert_close(one.table.pull(asked), other.table.pull(asked), rtol=0, atol=1e-15)
    assert one.table.entries().seen.tolist() == other.table.entries().seen.tolist() == [1, 3, 1, 1]


def test_what_is_not_trained_changes_nothing() -> None:
    one = elastic()
    tables = SplitTables([one])
    with torch.no_grad():
        one(torch.tensor([[1, 2]]))
    one.eval()
    one(torch.tensor([[1, 2]]))
    tables.step()
    one.train()
    one(torch.tensor([[3]])).sum().backward()
    tables.undo()
    tables.step()
    assert len(one.table) == 0
    assert not list(one.parameters())


def test_a_batch_that_only_keeps_pace_is_not_counted() -> None:
    one = elastic()
    tables = SplitTables([one])
    tables.begin_batch()
    (0.0 * one(torch.tensor([[3]])).sum()).backward()
    tables.end_batch(counts=False)
    tables.push((0, 1))
    tables.apply()
    assert len(one.table) == 0


def test_all_ids_of_64_bits_have_rows_of_their_own_signed_or_not() -> None:
    one = elastic(SGD(lr=0.1))
    tables = SplitTables([one])
    ids = torch.tensor([[-1, 0], [-(2**63), 2**63 - 1]])
    one(ids).sum().backward()
    tables.step()
    assert one.table.entries().ids.tolist() == [-(2**63), -1, 0, 2**63 - 1]
    assert torch.equal(one(ids.view(torch.uint64)), one(ids))


def test_batches_without_ids_give_zeros() -> None:
    one = elastic()
    empty = torch.empty(0, dtype=torch.int64)
    assert one(empty.view(3, 0)).tolist() == [[0.0] * WIDTH] * 3
    assert one(empty, torch.tensor([0, 0])).tolist() == [[0.0] * WIDTH] * 2
    assert elastic(mode="sequence")(empty.view(0, 4)).shape == (0, 4, WIDTH)
    one(empty, torch.tensor([0])).sum().backward()
    SplitTables([one]).step()


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ((torch.tensor([[1.0]]),), TypeError, "are torch.float32: expected a tensor of"),
        (([1, 2],), TypeError, "are list: expected a tensor"),
        ((torch.tensor([1]),), ValueError, "have 1 dimensions and no offsets"),
        ((torch.tensor([[1]]), torch.tensor([0])), ValueError, "have 2 and 1 dimensions"),
        ((torch.tensor([1]), torch.tensor([0.0])), TypeError, "offsets for table 't' are"),
        ((torch.tensor([1, 2]), torch.tensor([1])), ValueError, "begin with 1"),
        ((torch.tensor([1, 2]), torch.tensor([0, 2, 1])), ValueError, "fall between"),
        ((torch.tensor([1, 2]), torch.tensor([0, 3])), ValueError, "stay within 2 ids"),
        ((torch.tensor([1]), torch.tensor([]).long()), ValueError, "1 ids for table 't' and no"),
    ],
)
def test_bad_ids_are_refused_in_words(given: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        elastic()(*given)


def test_other_bad_input_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="mode is 'max': expected one of sum, mean, sequence"):
        elastic(mode="max")
    with pytest.raises(ValueError, match="several tables are named t"):
        SplitTables([elastic(), elastic()])
    with pytest.raises(TypeError, match="modules: expected ElasticEmbeddings, found Linear"):
        SplitTables([torch.nn.Linear(2, 2)])
    with pytest.raises(ValueError, match="whose mode is 'sequence'"):
        elastic(mode="sequence")(torch.tensor([1]), torch.tensor([0]))
