"""Tensors that differ in a bit are told apart; those that don't aren't."""

from __future__ import annotations

import torch
from elastic_trainer.feed import likeness
from elastic_trainer.store.blob import lay_out
from hypothesis import given
from hypothesis import strategies as st

STATES = st.lists(st.lists(st.integers(-(2**31), 2**31), max_size=5), min_size=1, max_size=6)


def tensors(numbers: list[list[int]]) -> list[torch.Tensor]:
    return [torch.tensor(one, dtype=torch.int64) for one in numbers]


@given(STATES, st.data())
def test_what_differs_is_found(numbers: list[list[int]], data: st.DataObject) -> None:
    state = tensors(numbers)
    other = tensors(numbers)
    filled = [place for place, one in enumerate(numbers) if one]
    changed = data.draw(st.sets(st.sampled_from(filled)) if filled else st.just(set()))
    for place in changed:
        other[place][data.draw(st.integers(0, len(numbers[place]) - 1))] ^= 1
    told = likeness.decode(likeness.encode(likeness.likenesses(lay_out(other))))
    blob = lay_out(state)
    found = likeness.differing(likeness.likenesses(blob), told)
    assert found == [filled.index(place) for place in sorted(changed)]


def test_steps_in_opposite_directions_are_no_likeness() -> None:
    one = torch.ones(100)
    other = one.clone()
    other[3] = torch.nextafter(other[3], torch.tensor(2.0))
    other[7] = torch.nextafter(other[7], torch.tensor(0.0))
    pair = [likeness.likenesses(lay_out([state])) for state in (one, other)]
    assert likeness.differing(*pair) == [0]


def test_states_that_are_laid_out_otherwise_have_nothing_in_common() -> None:
    one = likeness.likenesses(lay_out([torch.ones(3)]))
    other = likeness.likenesses(lay_out([torch.ones(4)]))
    assert likeness.differing(one, other) is None


def test_content_with_gaps_is_told_by_its_elements() -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    gaps = lay_out([whole[:, ::2]])
    packed = lay_out([whole[:, ::2].contiguous()])
    pair = [likeness.likenesses(blob)[0].digest for blob in (gaps, packed)]
    assert pair[0] == pair[1]
    assert bytes(likeness.content(gaps, 0).numpy()) == bytes(likeness.content(packed, 0).numpy())
