"""Several data sets in one training, in their shares."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.mixture import Mixture
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset

Source: Any = list
"""A list is a map-style data set."""


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    samples=st.integers(50, 300),
    data=st.data(),
)
def test_shares_are_kept_and_samples_of_a_data_set_come_equally_often(
    lengths: list[int], samples: int, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.floats(0.5, 10), min_size=len(lengths), max_size=len(lengths)))
    mixture = Mixture([Source(range(length)) for length in lengths], weights, samples=samples)
    assert len(mixture) == samples == sum(mixture.draws)
    found = Counter(mixture.source(index) for index in range(samples))
    for number, (length, weight) in enumerate(zip(lengths, weights, strict=True)):
        assert abs(mixture.draws[number] - samples * weight / sum(weights)) <= 1
        often = [found[number, sample] for sample in range(length)]
        assert sum(often) == mixture.draws[number]
        assert max(often) - min(often) <= 1


def test_training_passes_a_mixture_and_a_concatenation_once() -> None:
    words, numbers = Source(["a", "b", "c"]), Source(range(6))
    mixed = Mixture([words, numbers], [1, 2], samples=18)
    data = ElasticDataset(mixed, batch_size=4, epochs=1, collate=list)
    taken = Counter(sample for batch in data for sample in batch)
    assert taken == Counter({**dict.fromkeys("abc", 2), **dict.fromkeys(range(6), 2)})
    both = ElasticDataset(ConcatDataset([words, numbers]), batch_size=4, epochs=1, collate=list)
    assert Counter(s for batch in both for s in batch) == Counter(["a", "b", "c", *range(6)])


@pytest.mark.parametrize(
    ("datasets", "weights", "message"),
    [
        ([[1]], [1, 2], "1 datasets and 2 weights"),
        ([[1], []], [1, 1], "data set 1 is empty"),
        ([[1], [2]], [1, 0], r"weights are \[1, 0\]: expected numbers above 0"),
        ([[1], [2]], [1, 1000], "expected at least 1; take more samples"),
    ],
)
def test_impossible_mixtures_are_refused(datasets: Any, weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(datasets, weights, samples=10)
