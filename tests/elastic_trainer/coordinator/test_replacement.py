"""`replace` does what dataclasses' own does, only at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elastic_trainer.coordinator.model import Settings, State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import Heartbeat, Hello, Join, Member, Round

from .world import Job


def test_a_copy_has_the_new_values_and_the_original_its_own() -> None:
    state = Job(min_nodes=1, max_nodes=2).running(0, 1).state
    agent = state.agents["a0"]
    for value, changes in ((state, {"step": 9, "reason": "x"}), (agent, {"late": 3}), (agent, {})):
        made = replace(value, **changes)
        assert made == dataclasses.replace(value, **changes)
        assert (made == value) is not bool(changes) and made is not value
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.step = 1


def test_a_field_that_is_not_there_is_refused() -> None:
    for value in (State(Settings(1, 1), 0.0), Heartbeat(), Settings(1, 1)):
        changes: dict[str, Any] = {"setp": 1}
        with pytest.raises(TypeError):
            replace(value, **changes)


def test_a_value_that_checks_its_fields_checks_those_of_a_copy() -> None:
    with pytest.raises(ValueError, match="expected 1 <= min <= max"):
        replace(Settings(1, 2), min_nodes=3)


def test_what_was_worked_out_from_other_fields_is_worked_out_anew() -> None:
    made = Round(1, (Member("a"), Member("b")))
    assert made.rank_of("b") == 1
    changed = replace(made, members=(Member("b"),))
    assert changed.rank_of("b") == 0 and changed.rank_of("a") is None


def test_slotted_values_are_copied_too() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Slotted:
        one: int = 1
        two: int = 2

    assert replace(Slotted(), two=3) == Slotted(1, 3)
    assert replace(Hello("a"), address="h") == Hello("a", address="h") != Join()
