"""The digest of what all ranks have alike: it tells any bit, and nothing but the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.checkpoint.model_state import DIGESTS_VARIABLE, ModelState
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.store.blob import lay_out
from elastic_trainer.store.digest import digest_of_replicated
from elastic_trainer.store.slot import Label, Slot
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)


def state_of(*tensors: torch.Tensor, moments: torch.Tensor | None = None) -> dict[str, Any]:
    names = [str(number) for number in range(len(tensors))]
    held = {0: {"step": 3, "exp_avg": moments}} if moments is not None else {}
    return {
        "model": dict(zip(names, tensors, strict=True)),
        "optimizer": {"state": held},
        "replicated": {"model": names, "optimizer": [0]},
    }


@given(st.integers(0, 40), st.sampled_from(DTYPES), st.data())
def test_any_one_bit_that_is_flipped_makes_another_digest(
    size: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    raw = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
    values = raw.view(dtype)
    before = digest_of_replicated(state_of(torch.ones(3), values, moments=torch.ones(2)))
    again = digest_of_replicated(state_of(torch.ones(3), values.clone(), moments=torch.ones(2)))
    assert again == before
    if size:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        after = digest_of_replicated(state_of(torch.ones(3), values, moments=torch.ones(2)))
        assert after != before


def test_differences_that_add_up_to_nothing_and_rows_that_change_places_count() -> None:
    words = torch.arange(1000)
    other = words.clone()
    other[3] += 7
    other[500] -= 7
    swapped = words.reshape(10, 100)[[1, 0, *range(2, 10)]].reshape(-1)
    assert len({digest_of_replicated(state_of(one)) for one in (words, other, swapped)}) == 3


def test_a_bit_of_the_optimizers_state_counts_and_one_that_has_none_yet_is_no_error() -> None:
    found = {
        digest_of_replicated(state_of(torch.ones(3))),
        digest_of_replicated(state_of(torch.ones(3), moments=torch.ones(3))),
        digest_of_replicated(state_of(torch.ones(3), moments=torch.tensor([1.0, 1.0, 1.0000001]))),
    }
    assert len(found) == 3


def test_where_no_promise_is_made_there_is_no_digest() -> None:
    state = state_of(torch.ones(3))
    del state["replicated"]
    assert digest_of_replicated(state) == ""


def test_a_tensor_with_gaps_or_at_an_odd_place_has_the_digest_of_its_copy() -> None:
    whole = torch.arange(60.0).reshape(5, 12)
    for part in (whole[:, ::2], whole[1:, 1:2], whole.reshape(-1)[1:8], whole.T):
        copy = torch.empty_strided(part.shape, part.stride()).copy_(part)
        assert digest_of_replicated(state_of(part)) == digest_of_replicated(state_of(copy))


def trained() -> tuple[torch.nn.Module, ModelState]:
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    data = ElasticDataset(TensorDataset(torch.ones(6, 3)), batch_size=2, epochs=1)
    return net, ModelState(net, optimizer, data, {})


def test_the_agent_finds_the_same_in_a_slot_as_the_rank_in_its_process(tmp_path: Path) -> None:
    _, state = trained()
    taken = {**state.take(), "rng": {"cpu": torch.get_rng_state()}}
    blob = lay_out(taken)
    label = Label("t", 1, 1, 0, 1, False, len(blob.skeleton), blob.size)
    slot = Slot(tmp_path / "slot")
    slot.write(label, blob)
    assert slot.verify() == label
    assert slot.replicated_digest(label) == digest_of_replicated(taken) != ""
    slot.discard()
    assert slot.label() is None and slot.replicated_digest(label) == ""


def test_buffers_and_parameters_that_are_left_out_of_averaging_may_differ() -> None:
    net, state = trained()
    before = digest_of_replicated(state.take())
    net[1].running_mean += 1.0
    assert digest_of_replicated(state.take()) == before
    with torch.no_grad():
        net[0].bias[2] += 1e-6
    assert digest_of_replicated(state.take()) != before
    net._ddp_params_and_buffers_to_ignore = ["0.bias"]  # as DistributedDataParallel's own
    left_out = digest_of_replicated(state.take())
    with torch.no_grad():
        net[0].bias += 1.0
        state.optimizer.state[net[0].bias]["exp_avg"] += 1.0
    assert digest_of_replicated(state.take()) == left_out
    state.optimizer.state[net[0].weight]["exp_avg"] += 1.0
    assert digest_of_replicated(state.take()) != left_out


def test_a_job_may_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = trained()
    monkeypatch.setenv(DIGESTS_VARIABLE, "0")
    assert digest_of_replicated(state.take()) == ""
