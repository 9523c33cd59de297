"""Newcomers wait for another change of the round where one costs more than they bring."""

from __future__ import annotations

import pytest
from elastic_trainer.coordinator.goodput import Use
from elastic_trainer.coordinator.joining import (
    JOIN_WAIT_SECONDS,
    JOIN_WAIT_VARIABLE,
    MANY,
    join_wait_seconds,
    patience,
    start_up,
)
from elastic_trainer.coordinator.model import Lost, NewRange, RoundRecord
from elastic_trainer.protocol.message import (
    FenceAsk,
    Hello,
    Join,
    Linked,
    Progress,
    RoundOver,
    Standby,
)

from tests.elastic_trainer.coordinator.world import Job

WAIT = 3600.0
STEP = 2.0


def training(nodes: int, seconds: float, *, live: bool = True) -> Job:
    """A round whose first step begins so long after it was made.

    Args:
        live: its workers went on in process when another node was lost; else they began with it.
    """
    job = Job(min_nodes=1, max_nodes=nodes + 8, join_wait=WAIT)
    job.running(*range(nodes + live))
    link(job, nodes + live)
    if live:
        job.feed(Lost(f"a{nodes}"))
        for index in range(nodes):
            job.say(f"a{index}", Join(5000 + index, live=True))
        job.pass_time(0.5)
        link(job, nodes)
    assert job.state.round is not None
    job.now = job.state.rounds[-1].time + seconds + STEP
    job.say("a0", Progress(job.state.round.round, 0, step_seconds=STEP))
    job.heard.clear()
    return job


def link(job: Job, nodes: int) -> None:
    assert job.state.round is not None and len(job.members()) == nodes
    for index in range(nodes):
        job.say(f"a{index}", Linked(job.state.round.round, recovers=True, last_run=1))


def come(job: Job, *indexes: int) -> None:
    """Newcomers whose workers wait in process."""
    for index in indexes:
        job.say(f"a{index}", Hello(f"a{index}", index, "h"), Join(5000 + index))
        job.last(f"a{index}", Standby)
        job.say(f"a{index}", Join(5000 + index, live=True))


def asked(job: Job) -> bool:
    return any(isinstance(one, FenceAsk) for one in job.heard.get("a0", []))


@pytest.mark.parametrize(("nodes", "seconds"), [(MANY - 1, 60.0), (2, 600.0), (MANY, 1.0)])
def test_newcomers_are_let_in_at_once_where_a_change_costs_little(
    nodes: int, seconds: float
) -> None:
    job = training(nodes, seconds)
    come(job, nodes)
    assert asked(job)


def test_what_scripts_load_at_their_start_is_no_cost_of_a_change() -> None:
    job = training(MANY, 300.0, live=False)
    come(job, MANY)
    assert asked(job)


def test_a_newcomer_waits_until_it_has_lost_what_a_change_costs_the_others() -> None:
    job = training(MANY, 30.0)
    come(job, MANY)
    assert not asked(job)
    job.now += 30.0 * MANY - 1
    job.pass_time(0.5)
    assert not asked(job)
    assert job.state.ledger.accounts[f"a{MANY}"].use is Use.WAITING
    job.pass_time(1.0)
    assert asked(job)


def test_more_of_them_wait_less_and_nobody_where_there_are_fewer_than_the_least() -> None:
    job = training(MANY, 30.0)
    come(job, *range(MANY, MANY + 8))
    job.now += 30.0 * MANY / 8
    job.pass_time(0.5)
    assert asked(job)
    job = training(MANY, 30.0)
    come(job, MANY)
    job.feed(NewRange(MANY + 1, MANY + 8))
    assert asked(job)


def test_they_come_along_with_a_loss() -> None:
    job = training(MANY, 30.0)
    come(job, MANY)
    job.feed(Lost("a3"))
    assert job.state.round is None and isinstance(job.heard["a0"][-1], RoundOver)
    for index in set(range(MANY)) - {3}:
        job.say(f"a{index}", Join(5000 + index, live=True))
    job.pass_time(0.5)
    assert len(job.members()) == MANY and f"a{MANY}" in job.members()


def test_the_longest_is_settable() -> None:
    assert patience(300.0, 12_500, 1, WAIT) == WAIT
    assert patience(300.0, 12_500, 1, 0.0) == 0.0
    assert join_wait_seconds({}) == JOIN_WAIT_SECONDS
    assert join_wait_seconds({JOIN_WAIT_VARIABLE: "0"}) == 0.0
    for text in ("-1", "inf", "soon"):
        with pytest.raises(ValueError, match=JOIN_WAIT_VARIABLE):
            join_wait_seconds({JOIN_WAIT_VARIABLE: text})


def test_a_long_step_and_a_cold_start_are_no_start_up() -> None:
    def made(number: int, took: float | None, *, live: bool = True) -> RoundRecord:
        first = None if took is None else number * 1000 + took
        return RoundRecord(number, MANY, number * 1000, "", first_step_time=first, live=live)

    assert start_up([], 1.0) == 0.0
    assert start_up([made(1, None), made(2, 500.0, live=False)], 1.0) == 0.0
    assert start_up([made(1, 5.0), made(2, 31.0), made(3, 41.0)], 1.0) == 30.0
    assert start_up([made(1, 5.0)], 60.0) == 0.0
