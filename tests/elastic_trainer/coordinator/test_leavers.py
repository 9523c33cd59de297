"""Leavers that hold rows of tables give them to others first, whenever they begin to leave."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.leavers import GIVE_SECONDS, wait_until
from elastic_trainer.coordinator.model import (
    Gone,
    Lost,
    NewRange,
    Phase,
    Received,
    Settings,
    State,
    Tick,
)
from elastic_trainer.coordinator.state import step
from elastic_trainer.protocol.message import (
    Dismissed,
    FenceAsk,
    Fenced,
    FenceReply,
    FenceStop,
    Heartbeat,
    Hello,
    Join,
    Leave,
    Linked,
    Progress,
    RoundOver,
    Standby,
    WorkersFailed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.world import STARTED, TABLES, FakeAgent, Job
from tests.examples import examples


def stop_once_linked(job: Job, round_: int) -> FenceStop:
    """Return the stop that workers 0 and 1 are told once a round that somebody leaves is linked."""
    for index in (0, 1):
        job.say(f"a{index}", Linked(round_, recovers=True, last_run=1))
    fence = job.last("a0", FenceAsk).fence
    for index in (0, 1):
        job.say(f"a{index}", FenceReply(fence, 4))
    return job.last("a0", FenceStop)


class TableJob(Job):
    """A job whose workers go from round to round in process, and hold tables."""

    def linking(self, *indexes: int) -> None:
        assert self.state.round is not None
        for index in indexes:
            self.say(f"a{index}", Linked(self.state.round.round, recovers=True, last_run=1), TABLES)

    def training(self, *indexes: int) -> TableJob:
        self.running(*indexes)
        self.linking(*indexes)
        return self

    def back(self, *indexes: int) -> None:
        """Their workers are out of the round that is over."""
        for index in indexes:
            self.say(f"a{index}", Join(5000 + index, live=True))

    def fence(self, *indexes: int) -> None:
        """They come to the fence that they are asked for, and stand there."""
        fence = self.last(f"a{indexes[0]}", FenceAsk).fence
        for index in indexes:
            self.say(f"a{index}", FenceReply(fence, 3))
        for index in indexes:
            self.say(f"a{index}", Fenced(self.last(f"a{index}", FenceStop).fence, 4))

    def between(self, *indexes: int) -> TableJob:
        """A newcomer's fence has just been reached."""
        self.training(*indexes)
        self.join(9)
        self.back(9)
        self.pass_time(0.4)
        self.fence(*indexes)
        assert self.state.phase is Phase.RESTARTING
        return self

    @property
    def stepless(self) -> bool:
        return self.state.round is not None and self.state.round.stepless

    def dismissed(self, index: int) -> bool:
        return any(isinstance(one, Dismissed) for one in self.heard.get(f"a{index}", []))


@pytest.mark.parametrize("waits", [False, True])
def test_who_begins_to_leave_between_rounds_gives_its_rows_at_the_next_ones_first_fence(
    waits: bool,
) -> None:
    job = TableJob(min_nodes=1, max_nodes=6).between(0, 1, 2)
    if waits:
        job.back(2)
    job.say("a2", Leave())
    assert not job.dismissed(2)
    job.back(0, 1)
    if not waits:
        assert job.state.phase is Phase.RESTARTING, "its rows are waited for"
        job.back(2)
    assert job.members() == ["a0", "a1", "a2", "a9"]
    job.linking(0, 1, 2, 9)
    assert job.last("a2", FenceAsk).round == job.state.last_round
    job.fence(0, 1, 2, 9)
    assert job.last("a2", FenceStop).leaving and job.dismissed(2)
    job.back(0, 1, 9)
    assert job.members() == ["a0", "a1", "a9"]


def test_a_leaver_whose_round_breaks_by_anothers_loss_takes_part_in_the_next_one() -> None:
    for told in (False, True):
        job = TableJob(min_nodes=1, max_nodes=4).training(0, 1, 2)
        job.say("a2", Leave())
        if told:
            fence = job.last("a2", FenceAsk).fence
            for agent in ("a0", "a1", "a2"):
                job.say(agent, FenceReply(fence, 3))
        job.say("a1", WorkersFailed(1))
        assert not job.dismissed(2) and job.last("a2", RoundOver).round == 1
        job.back(0)
        assert job.state.phase is Phase.RESTARTING
        job.back(2)
        assert job.members() == ["a0", "a2"], "who failed is not waited for"
        job.linking(0, 2)
        job.fence(0, 2)
        assert job.dismissed(2)


def test_a_leaver_that_stands_at_the_fence_as_its_round_breaks_has_given_all_away() -> None:
    job = TableJob(min_nodes=1, max_nodes=4).training(0, 1, 2)
    job.say("a2", Leave())
    fence = job.last("a2", FenceAsk).fence
    for agent in ("a0", "a1", "a2"):
        job.say(agent, FenceReply(fence, 3))
    job.say("a2", Fenced(fence, 4))
    job.say("a1", WorkersFailed(1))
    assert job.dismissed(2)


def test_a_leaver_waits_for_no_round_that_has_nothing_of_it() -> None:
    without = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    without.say("a0", WorkersFailed(1))
    without.say("a2", Leave())
    without.last("a2", Dismissed)  # no tables were told of

    job = TableJob(min_nodes=1, max_nodes=4).between(0, 1)
    job.say("a9", Leave())  # it was in no round yet
    assert job.dismissed(9)

    job = TableJob(min_nodes=1, max_nodes=4).training(0, 1, 2)
    job.say("a2", Leave())
    job.say("a2", WorkersFailed(1))  # with its rows
    assert job.dismissed(2)

    job = TableJob(min_nodes=1, max_nodes=4).between(0, 1, 2)
    job.say("a2", Leave())
    job.say("a2", Join(5002))  # its workers had to be started anew
    assert job.dismissed(2)
    job.back(0, 1)
    assert job.members() == ["a0", "a1", "a9"]


def test_a_leaver_goes_while_its_grace_has_time_for_it() -> None:
    """A third of it, or ten seconds, are kept for the round in which it gives its rows."""
    for grace, until in ((30.0, 16.65), (600.0, 585.0), (12.0, 6.0)):
        job = TableJob(min_nodes=1, max_nodes=4).between(0, 1, 2)
        job.state = replace(job.state, restart_deadline=10_000.0)
        job.say("a2", Leave(grace))
        job.back(1, 2)  # worker 0 isn't out of its round
        job.pass_time(until - 0.1)
        assert not job.dismissed(2)
        job.pass_time(0.2)
        assert job.dismissed(2) and job.state.phase is Phase.RESTARTING
        job.back(0)
        assert job.members() == ["a0", "a1", "a9"]

    job = TableJob(min_nodes=1, max_nodes=4).between(0, 1, 2)
    job.say("a2", Progress(1, 4, 0.0, step_seconds=20.0))
    job.say("a2", Leave())
    job.back(0, 2)
    assert job.state.phase is Phase.RESTARTING, "nobody else can give what worker 1 has"
    job.back(1)
    assert job.members() == ["a0", "a1", "a2"]
    assert job.stepless, "the next round's first step would take too long"


@given(st.floats(0.1, 1e5), st.floats(0.0, 1e4), st.floats(0.0, 1e5))
def test_time_is_left_of_any_grace_for_a_round_and_a_step(
    grace: float, step_seconds: float, now: float
) -> None:
    margin = min(5.0, grace / 4)
    agent = Agent("a", 0, "", 0.0, leaving_since=now, leave_by=now + grace - margin)
    left = agent.leave_by - wait_until(agent, step_seconds)
    least = min(GIVE_SECONDS, (grace - margin) / 3) + step_seconds
    assert left == pytest.approx(least, abs=1e-6)


def test_a_leaver_waits_for_a_round_that_is_not_linked_yet_to_give_its_rows() -> None:
    job = TableJob(min_nodes=1, max_nodes=4).between(0, 1, 2)
    job.back(0, 1, 2)
    job.linking(0, 1, 9)
    job.say("a2", Leave())  # it moves its state
    job.pass_time(10.0)
    assert job.state.phase is Phase.RUNNING
    job.linking(2)
    job.fence(0, 1, 2, 9)
    assert job.last("a2", FenceStop).leaving and job.dismissed(2)

    job = TableJob(min_nodes=1, max_nodes=4).between(0, 1, 2)
    job.back(0, 1, 2)
    job.say("a2", Leave())
    job.pass_time(24.8)
    assert job.state.phase is Phase.RUNNING
    job.pass_time(0.4)
    assert job.dismissed(2), "Kubernetes kills it after 30 s"


def test_who_leaves_last_waits_for_its_round_to_link_and_commit() -> None:
    """The others have left at the fence before, and nobody else has the state."""
    for stays in (False, True):
        job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
        for index in (0, 1, 2):
            job.say(f"a{index}", Linked(1, recovers=True, last_run=1))
        job.say("a2", Leave())
        fence = job.last("a2", FenceAsk).fence
        for index in (0, 1, 2):
            job.say(f"a{index}", FenceReply(fence, 3))
        for index in (0, 1, 2):
            job.say(f"a{index}", Fenced(fence, 4))
        for index in (0, 1):
            job.say(f"a{index}", Join(5000 + index, live=True))
        assert job.members() == ["a0", "a1"]
        job.say("a0", Leave())
        if not stays:
            job.say("a1", Leave())
        job.pass_time(5.0)
        if stays:
            job.last("a0", Dismissed)
            continue
        assert job.state.phase is Phase.RUNNING
        assert stop_once_linked(job, 2).commit


def test_all_commit_at_the_fence_where_too_few_stay_to_go_on() -> None:
    """They wait for others with the only live state, and go with it as they have to leave, too."""
    for settings_, count, newcomers, leavers, commits in (
        ({"min_nodes": 2}, 2, (), (1,), True),
        ({"min_nodes": 2}, 3, (), (1,), False),
        ({"min_nodes": 2}, 3, (), (1, 2), True),
        ({"min_nodes": 2, "max_nodes": 2}, 2, (9,), (1,), True),  # it may be gone by then
        ({"min_nodes": 2, "node_unit": 2}, 4, (), (1,), False),
        ({"min_nodes": 4, "node_unit": 2}, 4, (), (1,), True),
    ):
        job = Job(**{"max_nodes": 4, **settings_}).running(*range(count))
        job.join(*newcomers)
        for index in leavers:
            job.say(f"a{index}", Leave())
        fence = job.last("a0", FenceAsk).fence
        for index in range(count):
            job.say(f"a{index}", FenceReply(fence, 3))
        told = [job.last(f"a{index}", FenceStop) for index in range(count)]
        assert {one.commit for one in told} == {commits}, settings_
        assert [one.leaving for one in told] == [index in leavers for index in range(count)]


def test_who_was_told_that_all_commit_is_told_so_again_whatever_the_range_is_by_then() -> None:
    """Else it would wait for those that hear of the later stop alone."""
    job = Job(min_nodes=3, max_nodes=4).running(0, 1, 2)
    job.say("a1", Leave())
    fence = job.last("a0", FenceAsk).fence
    for index in (0, 1, 2):
        job.say(f"a{index}", FenceReply(fence, 3))
    assert job.last("a0", FenceStop).commit
    job.feed(NewRange(1, 4))
    job.say("a2", Leave())
    again = job.last("a0", FenceStop)
    assert again.fence > fence and again.commit

    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    job.say("a1", Leave())
    fence = job.last("a0", FenceAsk).fence
    for index in (0, 1, 2):
        job.say(f"a{index}", FenceReply(fence, 3))
    assert not job.last("a0", FenceStop).commit
    job.feed(NewRange(2, 4))
    job.say("a2", Leave())
    assert job.last("a0", FenceStop).commit
    job.feed(NewRange(1, 4))
    job.say("a0", Leave())
    assert job.last("a0", FenceStop).commit


def test_who_leaves_a_round_that_has_not_linked_waits_to_commit_where_too_few_stay() -> None:
    for low, dismissed in ((1, True), (2, False)):
        job = Job(min_nodes=low, max_nodes=4).running(0, 1)
        for index in (0, 1):
            job.say(f"a{index}", Linked(1, recovers=True, last_run=1))
        job.join(2)
        job.say("a2", Join(5002, live=True))
        job.pass_time(0.5)
        fence = job.last("a0", FenceAsk).fence
        for index in (0, 1):
            job.say(f"a{index}", FenceReply(fence, 3))
        for index in (0, 1):
            job.say(f"a{index}", Fenced(fence, 4))
        job.feed(Lost("a2"))
        for index in (0, 1):
            job.say(f"a{index}", Join(5000 + index, live=True))
        job.pass_time(0.5)
        assert job.members() == ["a0", "a1"] and job.state.last_round == 2
        job.say("a1", Leave())
        job.pass_time(5.0)
        gone = any(isinstance(one, Dismissed) for one in job.heard["a1"])
        assert gone is dismissed
        if dismissed:
            continue
        assert stop_once_linked(job, 2).commit


def test_leavers_that_nobody_stays_with_make_a_round_that_commits_or_go_at_once() -> None:
    job = TableJob(min_nodes=2, max_nodes=4).between(0, 1)
    job.feed(Lost("a9"))
    job.say("a0", Leave())
    job.say("a1", Leave())
    job.back(0, 1)
    assert job.members() == ["a0", "a1"]
    job.linking(0, 1)
    job.fence(0, 1)
    assert job.last("a0", FenceStop).commit and job.dismissed(0) and job.dismissed(1)

    job = TableJob(min_nodes=2, max_nodes=4).between(0, 1)
    job.feed(Lost("a9"))
    job.feed(Lost("a0"))
    job.say("a1", Leave())
    job.back(1)
    assert job.members() == ["a1"] and job.stepless
    job.linking(1)
    job.fence(1)
    assert job.last("a1", FenceStop).commit and job.dismissed(1)


def test_a_leavers_rows_go_to_one_that_waits_for_others() -> None:
    job = TableJob(min_nodes=2, max_nodes=4).training(0, 1)
    job.say("a1", Leave())
    job.feed(Lost("a0"))
    assert not job.dismissed(1)
    job.back(1)
    assert job.members() == ["a1"] and job.stepless, "there is nobody to wait for"

    job = TableJob(min_nodes=3, max_nodes=4).training(0, 1, 2)
    job.say("a2", WorkersFailed(1))
    job.back(0, 1)
    job.feed(Lost("a2"))
    assert job.state.phase is Phase.FORMING
    job.say("a1", Leave(60.0))
    job.join(3)
    job.back(3)
    assert job.members() == [] and not job.dismissed(1)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1", "a3"]


def test_who_holds_rows_has_a_place_before_who_has_none() -> None:
    job = TableJob(min_nodes=1, max_nodes=4).training(3, 4, 5, 6)
    job.join(0, 1)
    job.back(0, 1)
    job.say("a5", WorkersFailed(1))
    job.say("a6", Leave())
    job.back(3, 4, 6)
    assert job.members() == ["a0", "a3", "a4", "a6"]
    job.linking(0, 3, 4, 6)
    job.fence(0, 3, 4, 6)
    assert job.dismissed(6)
    job.back(0, 3, 4)
    assert job.members() == ["a0", "a1", "a3", "a4"]


def test_a_leaver_takes_no_place_of_one_that_stays_with_rows() -> None:
    job = TableJob(min_nodes=2, max_nodes=6, node_unit=2).training(0, 1, 2, 3, 4, 5)
    job.say("a1", Leave())
    job.say("a5", WorkersFailed(1))
    job.back(0, 1, 2, 3, 4)
    assert job.members() == ["a0", "a1", "a2", "a3", "a4"] and job.stepless
    job.linking(0, 1, 2, 3, 4)
    job.fence(0, 1, 2, 3, 4)
    stop = job.last("a1", FenceStop)
    assert stop.leaving and not stop.commit and job.dismissed(1)
    job.back(0, 2, 3, 4)
    assert job.members() == ["a0", "a2", "a3", "a4"] and not job.stepless


def test_a_holder_without_a_place_after_a_loss_gives_its_rows_first() -> None:
    job = TableJob(min_nodes=2, max_nodes=6, node_unit=2).training(0, 1, 2, 3)
    job.say("a1", WorkersFailed(1))
    job.back(0, 2, 3)
    assert job.members() == ["a0", "a2", "a3"] and job.stepless
    job.linking(0, 2, 3)
    job.fence(0, 2, 3)
    told = {index: job.last(f"a{index}", FenceStop) for index in (0, 2, 3)}
    assert [index for index in told if told[index].displaced] == [3]
    assert not any(one.leaving or one.commit for one in told.values())
    job.back(0, 2, 3)
    assert job.members() == ["a0", "a2"] and not job.stepless
    job.linking(0, 2)
    job.say("a1", Join(5001))
    job.back(1)
    job.pass_time(0.5)
    job.fence(0, 2)
    job.back(0, 2)
    assert job.members() == ["a0", "a1", "a2", "a3"]


@pytest.mark.parametrize("leaving", [True, False])
def test_a_new_coordinator_waits_for_who_asks_later_with_what_nobody_else_has(
    leaving: bool,
) -> None:
    for holds in (False, True):
        job = TableJob(min_nodes=2, max_nodes=4)
        tells = {"leaving": leaving, "holds": holds, "sharded": holds}
        job.say("a0", Hello("a0", 0, "10.0.0.0", last_round=4, **tells))
        for index in (1, 2):
            hello = Hello(f"a{index}", index, f"10.0.0.{index}", last_round=4, holds=True)
            job.say(f"a{index}", hello, Join(5000 + index, live=True, round=4))
        job.pass_time(4.0)
        assert job.members() == ([] if holds else ["a1", "a2"])
        assert not job.dismissed(0)
        if holds:
            job.say("a0", Join(5000, live=True, round=4))
            assert job.members() == ["a0", "a1", "a2"]

    job = TableJob(min_nodes=2, max_nodes=4)
    job.say("a0", Hello("a0", 0, "10.0.0.0", last_round=4, holds=True, sharded=True))
    job.join(1, 2)
    job.pass_time(44.0)
    assert job.members() == []
    job.pass_time(2.0)
    assert job.members() == ["a1", "a2"], "it may never come"


class LoopJob(TableJob):
    """A job whose workers go from round to round in process, with one state or sharded ones."""

    sharded = False

    def linking(self, *indexes: int) -> None:
        assert self.state.round is not None
        for index in indexes:
            linked = Linked(self.state.round.round, recovers=True, last_run=1, sharded=self.sharded)
            self.say(f"a{index}", linked)


class ShardedJob(LoopJob):
    sharded = True


def test_the_one_that_is_left_with_the_state_gives_it_to_who_comes_back() -> None:
    job = LoopJob(min_nodes=2, max_nodes=4).training(0, 1)
    job.say("a0", Leave())
    job.say("a1", WorkersFailed(1))
    assert not job.dismissed(0)
    job.back(0)
    job.say("a1", Join(5001))
    assert job.last("a1", Standby) is not None
    assert job.members() == []
    job.back(1)
    assert job.members() == ["a0", "a1"] and not job.stepless
    job.linking(0, 1)
    job.fence(0, 1)
    assert job.last("a0", FenceStop).commit and job.dismissed(0)


def test_the_one_that_is_left_with_the_state_commits_where_nobody_comes_back_in_time() -> None:
    job = LoopJob(min_nodes=2, max_nodes=4).training(0, 1)
    job.say("a0", Leave())
    job.say("a1", WorkersFailed(1))
    job.back(0)
    job.pass_time(16.0)
    assert job.members() == [] and not job.dismissed(0)
    job.pass_time(1.0)
    assert job.members() == ["a0"] and job.stepless
    job.linking(0)
    job.fence(0)
    assert job.last("a0", FenceStop).commit and job.dismissed(0)
    job.say("a1", Join(5001))
    job.join(2)
    job.pass_time(0.5)
    assert job.members() == ["a1", "a2"]


@pytest.mark.parametrize("leaves", ["together", "later", "before"])
def test_a_lone_survivor_that_waited_for_others_commits_before_it_goes(leaves: str) -> None:
    job = LoopJob(min_nodes=2, max_nodes=4).training(0, 1)
    if leaves == "before":
        job.say("a0", Leave())
    job.feed(Lost("a1"))
    if leaves == "together":
        job.say("a0", Leave())
    job.back(0)
    if leaves == "later":
        job.pass_time(60.0)
        assert job.state.phase is Phase.FORMING
        job.say("a0", Leave())
    assert not job.dismissed(0) and job.members() == ["a0"] and job.stepless
    job.linking(0)
    job.fence(0)
    assert job.last("a0", FenceStop).commit and job.dismissed(0)


def test_a_leaver_goes_at_once_where_others_have_the_state_too() -> None:
    job = LoopJob(min_nodes=2, max_nodes=4).training(0, 1, 2)
    job.say("a0", WorkersFailed(1))
    job.say("a2", Leave())
    assert job.dismissed(2)

    job = LoopJob(min_nodes=2, max_nodes=4).training(0, 1)
    job.feed(Lost("a1"))
    job.back(0)
    job.join(5)  # a newcomer that has nothing yet, and makes no round possible without it
    job.say("a5", Leave())
    assert job.dismissed(5)


def test_nobody_makes_a_last_round_while_another_side_may_go_on() -> None:
    """One of three that elect can't tell whether the two others train on."""
    job = LoopJob(min_nodes=2, max_nodes=4)
    for index in (0, 1, 2):
        job.say(f"a{index}", Hello(f"a{index}", index, f"10.0.0.{index}", port=7), Join(5000))
    job.pass_time(0.5)
    job.linking(0, 1, 2)
    job.feed(Lost("a1"))
    job.feed(Lost("a2"))
    job.back(0)
    job.say("a0", Leave())
    job.pass_time(5.0)
    assert job.members() == [] and not job.dismissed(0)
    job.feed(Gone(frozenset({"a1", "a2"})))
    assert job.members() == ["a0"] and job.stepless


def test_leavers_of_a_sharded_state_take_part_in_the_next_round() -> None:
    for kind in (LoopJob, ShardedJob):
        job = kind(min_nodes=1, max_nodes=4).training(0, 1, 2, 3)
        job.say("a1", WorkersFailed(1))
        job.say("a2", Leave())
        job.say("a3", Leave())
        gone = [job.dismissed(2), job.dismissed(3)]
        assert gone == [kind is LoopJob] * 2
        if kind is LoopJob:
            continue
        job.back(0, 2, 3)
        assert job.members() == ["a0", "a2", "a3"]
        job.linking(0, 2, 3)
        job.fence(0, 2, 3)
        assert job.dismissed(2) and job.dismissed(3)


def test_a_sharded_state_is_committed_by_whole_units_alone() -> None:
    for there in (2, 1):
        job = ShardedJob(min_nodes=4, max_nodes=4, node_unit=2).training(0, 1, 2, 3)
        job.feed(Lost("a3"))
        job.feed(Lost("a2"))
        if there == 1:
            job.feed(Lost("a1"))
        for index in range(there):
            job.say(f"a{index}", Leave())
        job.back(*range(there))
        assert (len(job.members()), job.stepless) == ((2, True) if there == 2 else (0, False))


def test_a_coordinator_that_was_started_anew_lets_a_leaver_wait_that_has_rows() -> None:
    for tables in (False, True):
        job = TableJob(min_nodes=2, max_nodes=4)
        for index in (0, 1, 2):
            hello = Hello(f"a{index}", index, f"10.0.0.{index}", last_round=4, leaving=index == 2)
            job.say(f"a{index}", hello)
            if tables:
                job.say(f"a{index}", TABLES)
        job.back(0, 2)
        assert job.dismissed(2) is not tables
        job.back(1)
        job.pass_time(0.5)
        assert job.members() == (["a0", "a1", "a2"] if tables else ["a0", "a1"])


class Holder(FakeAgent):
    """An agent whose workers hold tables, and live on unless they fail."""

    def __init__(self, index: int) -> None:
        super().__init__(f"a{index}", index, recovers=True)
        self.holds = False
        """Its workers were in a round, and have not failed since."""


@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["rows", "shards", "one state"]),
)
@settings(max_examples=examples(300), deadline=None)
def test_whenever_it_begins_to_leave_who_has_the_last_of_something_stands_at_a_fence_first(
    seed: int, least: int, failures: int, kind: str
) -> None:
    """In any order of what is heard, with newcomers, and workers that fail meanwhile. Where too few
    stay to go on, all are told to commit there."""
    draw = Random(seed)
    world = {f"a{index}": Holder(index) for index in range(draw.randint(least + 1, 6))}
    state, now = State(settings=Settings(least, 6), started=0.0), 0.0

    def feed(event: Any) -> None:
        nonlocal state
        state, effects = step(state, event, now)
        for effect in effects:
            agent = world.get(effect.agent)
            if agent is None:
                continue
            if isinstance(message := effect.message, Dismissed):
                stays = [one for one in world.values() if one.holds and not one.leaving]
                alone = kind != "one state" or not stays
                gave = agent.fenced or not (agent.holds and alone)
                assert gave, f"{agent.name} took all along"
                del world[agent.name]
            else:
                agent.inbox.append(message)

    def read(agent: Holder) -> None:
        for said in agent.read():
            if isinstance(said, Linked) and STARTED in agent.inbox:  # they have failed meanwhile
                feed(Received(agent.name, WorkersFailed(said.round)))
                continue
            if isinstance(said, Linked):
                agent.holds = True
                said = replace(said, sharded=kind == "shards")
            feed(Received(agent.name, said))
            if isinstance(said, Linked) and kind == "rows":
                feed(Received(agent.name, TABLES))

    for agent in list(world.values()):
        feed(Received(agent.name, agent.hello()))
        for said in agent.restart():
            feed(Received(agent.name, said))
    begun = False
    leavers, quiet = draw.randint(1, len(world)), 0
    for _ in range(4000):
        ready = [agent for agent in world.values() if agent.inbox]
        begun = begun or (state.phase is Phase.RUNNING and not ready)
        chance = draw.random()
        staying = [agent for agent in world.values() if not agent.leaving and agent.holds]
        if begun and chance < 0.06 and leavers and staying:
            leavers -= 1
            agent = draw.choice(staying)
            agent.leaving = True
            feed(Received(agent.name, Leave(600.0)))
        elif begun and chance < 0.08 and failures and world:
            agent = draw.choice(list(world.values()))
            if agent.round is not None:
                failures -= 1
                agent.holds = False
                feed(Received(agent.name, WorkersFailed(agent.round.round)))
                if agent.name in world:
                    agent.fail()
        elif ready and chance < 0.9:
            read(draw.choice(ready))
        else:
            now += 0.05
            for name in list(world):
                feed(Received(name, Heartbeat()))
            feed(Tick())
            quiet = 0 if ready or any(one.leaving for one in world.values()) else quiet + 1
            if quiet > 30:
                break
    assert not any(agent.leaving for agent in world.values()), "a leaver was forgotten"
