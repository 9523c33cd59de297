"""State values beside tensors: saved in a form that anybody reads, and back as they were."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from elastic_trainer.checkpoint.model_state import ModelState
from elastic_trainer.checkpoint.state_value import MARK, StateValueError, from_plain, to_plain
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.store.replica import read_replica, write_replica
from elastic_trainer.store.storage import Storage
from hypothesis import given
from hypothesis import strategies as st

from tests.elastic_trainer.checkpoint.test_optimizer_matrix import assert_same, through_memory


class Average(NamedTuple):
    value: torch.Tensor
    count: int


def module_state() -> Any:
    return torch.nn.BatchNorm1d(2).state_dict()


VALUES: dict[str, Any] = {
    "counter": collections.Counter([3, 6, 6]),
    "empty counter": collections.Counter(),
    "ordered": collections.OrderedDict(b=1, a=2),
    "default": collections.defaultdict(list, {1: [2]}),
    "default of none": collections.defaultdict(None, {1: 2}),
    "nested": collections.defaultdict(collections.Counter, {1: collections.Counter("aab")}),
    "deque": collections.deque([1, torch.ones(2), Average(torch.zeros(1), 3)], maxlen=4),
    "namedtuple": Average(torch.ones(2), 3),
    "frozen": frozenset({1, (2, 3)}),
    "set": {1, 2},
    "plain": (1, 2.5, "x", b"y", bytearray(b"z"), None, True, 1j, float("inf")),
    "numbers": [np.float64(0.1), np.int32(7), np.bool_(True), np.float16(0.5)],
    "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
    "generator": np.random.RandomState(0).get_state(),
    "tuples": ((), ((1,),), [[]]),
    "torch": (torch.float16, torch.Size([2, 3]), torch.device("cpu")),
    "a mark of ours": {MARK: "deque", "other": [1]},
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    plain = to_plain({"extra": VALUES[name]})
    storage = Storage(tmp_path)
    state = {**through_memory(plain), "cursor": {}}
    stored = read_replica(storage, write_replica(storage, step=1, run=1, state=state))
    for found in (plain, through_memory(plain), stored):
        equal(from_plain(found["extra"]), VALUES[name])


def equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    elif isinstance(expected, collections.deque):
        assert found.maxlen == expected.maxlen
        equal(list(found), list(expected))
    elif isinstance(expected, collections.defaultdict):
        assert found.default_factory is expected.default_factory and found == expected
    elif isinstance(expected, list | tuple) and not isinstance(expected, torch.Size):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    else:
        assert_same(found, expected)


def test_what_needs_no_description_is_saved_as_it_is() -> None:
    state = module_state()
    assert to_plain(state) is state
    assert from_plain(state)._metadata == state._metadata


@pytest.mark.parametrize("value", [Path(), lambda: 0, object(), collections.defaultdict(lambda: 1)])
def test_what_could_not_come_back_is_refused_when_it_is_saved(value: Any) -> None:
    with pytest.raises(StateValueError, match=r"the state holds a .*expected"):
        to_plain({"extra": [value]})


def test_a_class_that_the_script_lacks_is_named() -> None:
    saved = {MARK: "namedtuple", "class": "train:Gone", "fields": ["value"], "items": [1]}
    with pytest.raises(StateValueError, match=r"train:Gone of \['value'\]: this script has none"):
        from_plain(saved)


def test_a_checkpoint_runs_no_code_of_a_class_that_is_no_namedtuple() -> None:
    saved = {MARK: "namedtuple", "class": "pathlib:Path", "fields": [], "items": ["x"]}
    with pytest.raises(StateValueError):
        from_plain(saved)


def test_tied_tensors_stay_tied_and_leave_the_slot() -> None:
    one = torch.randn(3, 4)
    found = from_plain({"both": [one, one.t()]})["both"]
    assert found[0].data_ptr() == found[1].data_ptr() != one.data_ptr()
    assert torch.equal(found[1], one.t())


PLAIN = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", MARK]), inner, max_size=3),
        st.lists(inner, max_size=3).map(collections.deque),
        st.dictionaries(st.integers(), inner, max_size=3).map(
            lambda one: collections.defaultdict(int, one)
        ),
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_any_nesting_comes_back(value: Any) -> None:
    equal(from_plain(to_plain(value)), value)


class Strange(torch.optim.SGD):
    """Its state has what torch's own load_state_dict turns into something else."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(
                    name="muon",
                    precise=torch.tensor(0.1, dtype=torch.float64),
                    seen=collections.Counter([1]),
                    average=Average(torch.tensor(0.1, dtype=torch.float64), 1),
                )
        return found


def test_an_optimizers_values_keep_their_types_whatever_its_parameters() -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer, ModelState]:
        net = torch.nn.Linear(2, 2).bfloat16()
        optimizer = Strange(net.parameters(), lr=0.1, momentum=0.9)
        optimizer.param_groups[0]["seen"] = collections.Counter([2])
        return net, optimizer, ModelState(net, optimizer, ElasticSampler(9, batch_size=1), {})

    net, optimizer, state = make()
    net(torch.ones(1, 2).bfloat16()).sum().backward()
    optimizer.step()
    _, again, restored = make()
    saved = through_memory(state.take())
    restored.give(saved)
    assert again.param_groups[0]["seen"] == collections.Counter([2])
    for number, held in optimizer.state_dict()["state"].items():
        equal(again.state_dict()["state"][number], held)


def test_a_modules_extra_state_comes_back_and_leaves_the_slot() -> None:
    class Net(torch.nn.Linear):
        seen: Any = Average(torch.ones(1), 2)

        def get_extra_state(self) -> Any:
            return self.seen

        def set_extra_state(self, state: Any) -> None:
            self.seen = state

    def make() -> tuple[Net, ModelState]:
        net = Net(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return net, ModelState(net, optimizer, ElasticSampler(9, batch_size=1), {})

    _, state = make()
    net, again = make()
    saved = through_memory(state.take())
    net.seen = None
    with pytest.raises(ValueError, match="doesn't fit the model"):
        again.give(saved)
    net.seen = Average(torch.zeros(1), 0)
    again.give(saved)
    equal(net.seen, Average(torch.ones(1), 2))
