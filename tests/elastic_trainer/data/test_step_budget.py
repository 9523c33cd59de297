"""A rank's part of a step by samples, by tokens and in rows: what has no room stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic_trainer.data.step_budget import IGNORED, Packing, RowBudget, TokenBudget
from hypothesis import given
from hypothesis import strategies as st

lengths_of = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def rows(budget: RowBudget) -> dict[str, torch.Tensor]:
    ((batch, _),) = budget.batches(1, None)
    assert isinstance(batch, dict)
    return batch


class TestTokens:
    @given(lengths=lengths_of, most=st.integers(20, 60))
    def test_a_step_is_the_longest_beginning_that_has_room(
        self, lengths: list[int], most: int
    ) -> None:
        budget = TokenBudget(most, tokens=len)
        taken = []
        for length in lengths:
            if budget.full or budget.offer("x" * length, 0) is None:
                break
            taken.append(length)
        assert budget.weight == sum(taken) <= most
        if len(taken) < len(lengths):
            assert budget.full
            assert sum(taken) + lengths[len(taken)] > most

    @pytest.mark.parametrize("tokens", [0, 11])
    def test_a_sample_for_which_there_is_never_room_is_refused(self, tokens: int) -> None:
        with pytest.raises(ValueError, match=f"{tokens} tokens: expected 1 to max_tokens=10"):
            TokenBudget(10, len).offer("x" * tokens, 0)


class TestRows:
    @given(lengths=lengths_of, count=st.integers(1, 4), length=st.integers(2, 12))
    def test_documents_that_are_cut_go_on_where_they_were(
        self, lengths: list[int], count: int, length: int
    ) -> None:
        documents = [[100 * n + i for i in range(size)] for n, size in enumerate(lengths, 1)]
        place = part = 0
        seen: list[int] = []
        while place < len(documents):
            budget = RowBudget(Packing(count, length))
            while place < len(documents) and not budget.full:
                found = budget.offer(documents[place], part)
                assert found is not None
                part = found
                place += not part
            batch = rows(budget)
            tokens = batch["input_ids"][batch["document_ids"] > 0]
            assert place == len(documents) or len(tokens) == count * length
            seen += tokens.tolist()
        assert seen == [token for document in documents for token in document]

    @given(lengths=lengths_of, count=st.integers(1, 4))
    def test_documents_that_are_whole_lie_in_one_row_each(
        self, lengths: list[int], count: int
    ) -> None:
        budget = RowBudget(Packing(count, 20, cut=False))
        taken = 0
        while taken < len(lengths) and not budget.full:
            if budget.offer(torch.arange(lengths[taken]) + 1, 0) is None:
                break
            taken += 1
        batch = rows(budget)
        found = [
            int((row == number).sum())
            for row in batch["document_ids"]
            for number in range(1, int(row.max()) + 1)
        ]
        assert sorted(found) == sorted(lengths[:taken])
        free = (batch["document_ids"] == 0).sum(1)
        if taken < len(lengths):
            assert int(free.max()) < lengths[taken]
        assert budget.weight == sum(lengths[:taken]) - taken

    def test_rows_say_what_is_predicted_and_by_what(self) -> None:
        budget = RowBudget(Packing(2, 6))
        assert budget.offer([1, 2, 3, 4], 0) == 0
        assert budget.offer({"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, 0) == 0
        assert budget.weight == 3 + 0 + 1
        batch = rows(budget)
        assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0]]
        x = IGNORED
        assert batch["labels"].tolist() == [[x, 2, 3, 4, x, x], [x, 8, x, x, x, x]]
        assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 0, 0, 0, 0]]
        assert batch["document_ids"].tolist() == [[1, 1, 1, 1, 2, 2], [1, 1, 0, 0, 0, 0]]

    def test_a_rank_without_a_token_predicts_something_that_does_not_count(self) -> None:
        for budget in (RowBudget(Packing(2, 4)), RowBudget(Packing(2, 4, cut=False))):
            ((batch, weight),) = budget.batches(1, None)
            assert weight == 0
            assert (batch["labels"][:, 1:] != IGNORED).any()  # or the mean would be no number

    @pytest.mark.parametrize(
        ("sample", "message"),
        [
            ([1, 2, 3, 4, 5], r"5 tokens: expected at most Packing\(length=4\), or cut=True"),
            ([[1, 2]], "expected one sequence of token ids"),
            ({"input_ids": [1, 2], "labels": [1]}, "expected one sequence of token ids"),
        ],
    )
    def test_what_no_row_can_hold_is_refused(self, sample: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RowBudget(Packing(2, 4, cut=False)).offer(sample, 0)
        with pytest.raises(ValueError, match="expected at least 1 row"):
            Packing(0, 4)
