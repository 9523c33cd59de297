"""Each millisecond of each process is in exactly one use, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_trainer.coordinator.bookkeeping import ledger_as_of
from elastic_trainer.coordinator.goodput import Book, Ledger, Use
from elastic_trainer.coordinator.inheritance import Arrival
from elastic_trainer.coordinator.model import Checking, Lost, Phase, Tick
from elastic_trainer.protocol.message import (
    Fenced,
    FenceReply,
    Finished,
    Goodput,
    Hello,
    Inspected,
    Join,
    Leave,
    Linked,
    Progress,
    Stopped,
    WorkersFailed,
    WorkersSucceeded,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.world import Job
from tests.examples import examples

PROCESSES = 4


def uses(job: Job) -> dict[Use, int]:
    """The seconds of use that are not 0, of one process of each agent's."""
    found = ledger_as_of(job.state, job.now).uses()
    return {use: round(spent / 1000 / PROCESSES) for use, spent in found.items() if spent}


def hello(index: int, **more: Any) -> Hello:
    return Hello(f"a{index}", index, "h", processes=PROCESSES, **more)


def running(*indexes: int, hang_seconds: float = 60.0, **more: Any) -> Job:
    job = Job(min_nodes=1, max_nodes=len(indexes), hang_seconds=hang_seconds)
    for index in indexes:
        job.say(f"a{index}", hello(index, **more), Join(5000 + index))
    job.pass_time(0.4)
    job.link(*indexes)
    assert job.state.phase is Phase.RUNNING
    return job


def steps(job: Job, agents: int, first: int, count: int, **more: int) -> None:
    assert job.state.round is not None
    for number in range(first, first + count):
        job.pass_time(1.0)
        for index in range(agents):
            job.say(f"a{index}", Progress(job.state.round.round, number, **more))


def test_a_round_from_start_to_end_with_stalls_and_waits() -> None:
    job = running(0, 1, uncounted_milliseconds=20_000)
    steps(job, 2, 1, 1)
    steps(job, 2, 2, 50, stall_milliseconds=3000 * PROCESSES, input_milliseconds=4000 * PROCESSES)
    # One second's stall and no more: what a step was kept from training is part of its time.
    assert uses(job) == {Use.STARTING: 43, Use.TRAINING: 98, Use.SAVING: 2}
    for index in (0, 1):
        job.say(f"a{index}", Finished(1), WorkersSucceeded(1))
    assert ledger_as_of(job.state, job.now + 9.0).uses()[Use.TRAINING] == (98 + 18) * 1000 * 4


def test_what_a_later_round_does_again_was_in_vain() -> None:
    job = running(0)
    steps(job, 1, 1, 31)
    job.say("a0", WorkersFailed(1), Join(5000))
    job.pass_time(5.0)
    job.link(0)
    steps(job, 1, 21, 3)
    assert uses(job) == {
        Use.STARTING: 1,
        Use.TRAINING: 21,
        Use.REDONE: 11,
        Use.REGROUPING: 6,
    }


def test_a_hang_takes_all_time_since_the_last_step() -> None:
    job = running(0, 1)
    steps(job, 2, 1, 10)
    job.pass_time(60.2)
    for index in (0, 1):
        job.say(f"a{index}", Inspected(1))
    assert job.state.phase is Phase.RESTARTING
    assert uses(job) == {Use.STARTING: 3, Use.TRAINING: 18, Use.HANG: 120}


def test_too_few_nodes_wait_and_a_node_check_is_counted() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.say("a0", hello(0), Join(1))
    job.pass_time(30.0)
    assert uses(job) == {Use.WAITING: 30}
    job = Job(min_nodes=1, max_nodes=1)
    job.say("a0", hello(0))
    job.pass_time(3.0)
    job.feed(Checking(True))
    job.pass_time(4.0)
    job.feed(Checking(False))
    job.pass_time(2.0)
    assert uses(job) == {Use.STARTING: 5, Use.NODE_CHECK: 4}


def test_a_coordinator_that_is_started_anew_goes_on_from_what_agents_were_told() -> None:
    job = running(0, 1)
    steps(job, 2, 1, 40)
    before = ledger_as_of(job.state, job.now)
    told = replace(before.tell(), id="made by the first")
    anew = Job(min_nodes=2, max_nodes=2)
    for index in (0, 1):
        again = hello(index, round=job.state.round, step=40, linked=True, goodput=told)
        anew.say(f"a{index}", again)
    anew.pass_time(2.0)
    for index in (0, 1):
        anew.say(f"a{index}", Progress(1, 42))
    after = ledger_as_of(anew.state, anew.now)
    grown = {use: after.uses()[use] - before.uses()[use] for use in Use}
    assert grown == {**dict.fromkeys(Use, 0), Use.TRAINING: 2 * 2000 * PROCESSES}
    # A word of its own, from an agent that connects anew, is not counted twice.
    anew.feed(Lost("a1"))
    anew.say("a1", hello(1, goodput=after.tell(), uncounted_milliseconds=60_000))
    assert sum(ledger_as_of(anew.state, anew.now).uses().values()) == sum(after.uses().values())


def test_agents_that_say_hello_again_are_in_no_round_that_waits_for_them() -> None:
    # Both did, as containers that were restarted do, before anybody heard that they were gone.
    job = running(0, 1)
    for index in (0, 1):
        job.say(f"a{index}", hello(index), Join(5000))
    job.pass_time(5.0)
    assert job.state.round is not None and job.state.round.round == 2
    assert all(agent.attached for agent in job.state.agents.values())


AGENTS = st.integers(0, 3)
MESSAGES = st.one_of(
    st.builds(
        hello,
        AGENTS,
        uncounted_milliseconds=st.integers(-5, 10_000),
        goodput=st.builds(
            Goodput, st.sampled_from(["", "x"]), st.integers(-1, 3), st.tuples(*[st.just(7)] * 9)
        ),
    ),
    st.builds(Join, st.just(1), st.booleans()),
    st.builds(Linked, st.integers(0, 2), recovers=st.booleans()),
    st.builds(
        Progress,
        st.integers(0, 2),
        st.integers(0, 30),
        stall_milliseconds=st.integers(0, 5000),
        input_milliseconds=st.integers(0, 5000),
    ),
    st.builds(FenceReply, st.integers(0, 2), st.integers(-1, 30)),
    st.builds(Stopped, st.integers(0, 2)),
    st.builds(Fenced, st.integers(0, 2), st.integers(0, 30)),
    st.builds(WorkersFailed, st.integers(0, 2)),
    st.builds(Finished, st.integers(0, 2)),
    st.builds(WorkersSucceeded, st.integers(0, 2)),
    st.just(Leave(5.0)),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(AGENTS, MESSAGES, st.floats(0, 70)), max_size=40))
def test_whatever_is_said_all_that_was_held_is_in_one_use_and_none_is_negative(
    story: list[tuple[int, Any, float]],
) -> None:
    job = running(0, 1, hang_seconds=5.0)
    held = 0
    for index, message, seconds in story:
        if isinstance(message, Hello):
            index = int(message.agent[1:])
        elif getattr(message, "round", 1) == 0 and job.state.round is not None:
            message = replace(message, round=job.state.round.round)
        job.say(f"a{index}", message)
        job.now += seconds
        job.feed(Tick(dict.fromkeys(job.state.agents, job.now)))
        ledger = ledger_as_of(job.state, job.now)
        assert ledger.total == ledger.held >= held
        kept = job.state.ledger
        assert sum(kept.uses(int(job.now * 1000)).values()) == sum(ledger.uses().values())
        assert min(kept.uses(int(job.now * 1000)).values()) >= 0
        assert min(ledger.uses().values()) >= 0 and min(ledger.spent.values()) >= 0
        assert ledger.accounts.keys() == job.state.agents.keys()
        training = ledger.spent[Use.TRAINING]
        assert sum(span.milliseconds for span in ledger.spans) <= training
        held = ledger.held


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=400), st.integers(0, 500))
def test_a_loss_of_steps_moves_their_time_and_nothing_else(
    told: list[tuple[int, int]], first: int
) -> None:
    book, now, reached = Book(Ledger()), 0, [0, 0, 0]
    for index in range(3):
        book.enter(f"a{index}", Arrival(0, 1, Goodput(), 0, 0), None)
    for index, more in told:
        now += 10
        reached[index] += more
        book.stepped(f"a{index}", reached[index], now, 0, 0)
    before = book.closed()
    book = Book(before)
    book.roll_back(first)
    after = book.closed()
    lost = before.spent[Use.TRAINING] - after.spent[Use.TRAINING]
    assert after.spent[Use.REDONE] == lost >= 0 and after.total == before.total
    assert all(span.high < first for span in after.spans)
    if first > max(reached):
        assert lost == 0
