"""Leases are given out, decision by decision."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_trainer.data.ledger import Lease, Ledger
from elastic_trainer.shards import leases
from elastic_trainer.shards.leases import (
    Done,
    Fetch,
    Later,
    Leases,
    Lost,
    Opened,
    Owned,
    Refused,
    Told,
)
from elastic_trainer.shards.ranges import Ranges
from elastic_trainer.shards.shards import Shards

SHARDS = Shards(20, 1, 5)


def opened(life: str = "a", **given: Any) -> leases.State:
    event = Owned("owner", SHARDS, life, given.pop("consumed", Ranges()), **given)
    state, answer = leases.step(leases.State(), event, 0.0)
    assert answer == Done()
    return state


def fetched(state: leases.State, client: str, count: int = 1) -> tuple[leases.State, Ranges]:
    state, answer = leases.step(state, Fetch(client, SHARDS, count), 10.0)
    assert isinstance(answer, Leases), answer
    return state, answer.ranges


def test_nothing_is_handed_out_before_the_owner_came() -> None:
    state, _ = leases.step(leases.State(), Opened("worker"), 0.0)
    assert leases.step(state, Fetch("worker", SHARDS, 1), 0.0)[1] == Later()


def test_a_restarted_coordinator_waits_for_those_who_hold_leases() -> None:
    state = opened(again=True)
    assert leases.step(state, Fetch("new", SHARDS, 1), 0.5)[1] == Later(leases.RETELL_SECONDS)
    state, _ = leases.step(state, Opened("old", "a", Ranges.of(0, 10)), 0.6)
    assert fetched(state, "new")[1] == Ranges.of(10, 15)


def test_a_lost_workers_leases_go_to_the_next_who_asks() -> None:
    state, first = fetched(opened(), "one", 2)
    assert first == Ranges.of(0, 10)
    state, _ = leases.step(state, Lost("one"), 1.0)
    assert fetched(state, "two")[1] == Ranges.of(0, 5)


def test_idle_workers_wait_while_a_rollback_could_bring_work() -> None:
    state, _ = fetched(opened(), "one", 4)
    assert leases.step(state, Fetch("two", SHARDS, 1), 1.0)[1] == Later()
    state, _ = leases.step(state, Told("owner", "a", SHARDS.all), 1.0)
    assert leases.step(state, Fetch("two", SHARDS, 1), 1.0)[1] == Later()
    state, _ = leases.step(state, Told("owner", "a", SHARDS.all, 9, True), 1.0)
    assert leases.step(state, Fetch("two", SHARDS, 1), 1.0)[1] == Leases(
        "a", complete=True, below=20
    )


def test_a_worker_that_asks_after_the_owner_went_home_goes_home_too() -> None:
    state, _ = fetched(opened(), "one", 4)
    state, _ = leases.step(state, Told("owner", "a", SHARDS.all, 9, True), 1.0)
    state, _ = leases.step(state, Lost("owner"), 1.0)
    complete = Leases("a", complete=True, below=20)
    assert leases.step(state, Fetch("one", SHARDS, 1), 2.0)[1] == complete
    state, _ = leases.step(state, Opened("late"), 3.0)
    assert leases.step(state, Fetch("late", SHARDS, 1), 3.0)[1] == complete


def test_the_former_owner_is_refused() -> None:
    state, _ = leases.step(opened(), Owned("successor", SHARDS, "b", Ranges()), 1.0)
    answer = leases.step(state, Told("owner", "a", Ranges.of(0, 5), 3, True), 1.0)[1]
    assert isinstance(answer, Refused)
    assert "no longer owns the model: expected successor in life b, found owner" in answer.reason


def test_another_data_set_is_refused() -> None:
    grown = Shards(21, 1, 5)
    answer = leases.step(opened(), Fetch("worker", grown, 1), 1.0)[1]
    assert isinstance(answer, Refused)
    assert "expected the model owner's Shards(samples=20" in answer.reason
    assert "found Shards(samples=21" in answer.reason
    answer = leases.step(opened(), Owned("owner", grown, "b", Ranges()), 1.0)[1]
    assert answer == Refused("the job's data set is another: expected samples=20, found 21")
    with pytest.raises(ValueError, match="another data set: expected seed=0, found 1"):
        Ledger(samples=20, epochs=1, size=5, seed=1).load_state_dict(
            Ledger(samples=20, epochs=1, size=5).state_dict()
        )


def test_the_model_takes_nothing_twice_and_nothing_undone() -> None:
    ledger = Ledger(samples=20, epochs=1, size=5)
    lease = Lease(0, 5, ledger.life)
    assert ledger.add(lease)
    assert not ledger.add(lease)
    late = Lease(5, 10, ledger.life)
    ledger.load_state_dict(ledger.state_dict())
    assert not ledger.add(late)
    assert ledger.add(Lease(5, 10, ledger.life))
