"""Newcomers, and who was left out of the newest round, cost nobody what that round trained."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from elastic_trainer.coordinator.model import (
    FaultyNodes,
    Lost,
    Phase,
    Received,
    Settings,
    State,
    Tick,
)
from elastic_trainer.coordinator.state import step
from elastic_trainer.protocol.message import (
    AgentMessage,
    Dismissed,
    Electorate,
    FenceReply,
    FenceStop,
    Heartbeat,
    Hello,
    Join,
    Leave,
    Linked,
    Round,
    Taken,
    WorkersFailed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic_trainer.coordinator.test_leavers import LoopJob, ShardedJob
from tests.elastic_trainer.coordinator.world import STARTED, FakeAgent
from tests.examples import examples


@pytest.mark.parametrize("kind", [LoopJob, ShardedJob])
@pytest.mark.parametrize("breaks", [False, True])
def test_newcomers_take_no_place_of_who_goes_on_with_the_state(
    kind: type[LoopJob], breaks: bool
) -> None:
    """The state would stay behind with it, whichever order they are in."""
    job = kind(min_nodes=1, max_nodes=2).training(2, 3)
    job.join(0, 1)
    job.back(0, 1)
    if breaks:
        job.say("a3", WorkersFailed(1))
    else:
        job.say("a3", Leave())
        job.fence(2, 3)
        assert not job.last("a2", FenceStop).displaced
    job.back(2)
    assert job.members() == ["a0", "a2"] and not job.stepless


def test_one_that_had_no_place_in_the_newest_round_does_not_have_its_state() -> None:
    job = LoopJob(min_nodes=2, max_nodes=6, node_unit=2).training(0, 1, 2, 3)
    job.say("a3", WorkersFailed(1))
    job.back(0, 1, 2)
    assert job.members() == ["a0", "a1"]
    job.linking(0, 1)
    job.feed(Lost("a1"))
    job.say("a0", Leave())
    assert not job.dismissed(0)
    job.back(0)
    assert job.members() == ["a0", "a2"]
    job.linking(0, 2)
    job.fence(0, 2)
    assert job.dismissed(0)


def test_a_last_round_waits_for_nobody_with_the_state_of_an_earlier_one() -> None:
    job = LoopJob(min_nodes=2, max_nodes=6, node_unit=2).training(0, 1, 2, 3)
    job.say("a3", WorkersFailed(1))
    job.back(0, 1)
    job.pass_time(60.0)  # worker 2 doesn't come out of its round
    assert job.members() == ["a0", "a1"]
    job.linking(0, 1)
    job.feed(Lost("a1"))
    job.say("a0", Leave())
    job.back(0)
    job.pass_time(20.0)
    assert job.members() == ["a0"] and job.stepless


def test_a_new_coordinator_knows_whose_state_is_an_earlier_rounds() -> None:
    for last in (4, 5):
        job = LoopJob(min_nodes=2, max_nodes=4)
        for index, newest in ((0, 5), (1, last)):
            hello = Hello(f"a{index}", index, f"10.0.0.{index}", last_round=newest, holds=True)
            job.say(f"a{index}", hello, Join(5000 + index, live=True, round=newest))
        job.say("a0", Leave())
        assert job.dismissed(0) is (last == 5)


def test_a_fence_that_broke_gives_newcomers_no_place_before_leavers_with_the_state() -> None:
    job = LoopJob(min_nodes=1, max_nodes=3).training(0, 1, 2)
    job.join(3, 4, 5)
    job.back(3, 4, 5)
    for index in (0, 1, 2):
        job.say(f"a{index}", Leave(600.0))
    fence = job.state.last_fence
    for index in (0, 1, 2):
        job.say(f"a{index}", FenceReply(fence, 3))
    job.say("a0", WorkersFailed(1))
    job.back(1, 2)
    assert job.members() == ["a1", "a2", "a3"] and not job.dismissed(1) and not job.dismissed(2)


def test_whose_workers_fail_out_of_any_round_has_the_state_no_more() -> None:
    job = LoopJob(min_nodes=1, max_nodes=4).training(0, 1, 2)
    job.say("a2", WorkersFailed(1))
    job.say("a1", WorkersFailed(1))
    job.say("a0", Leave())
    assert not job.dismissed(0)


def test_who_came_to_the_state_as_its_round_broke_has_it() -> None:
    job = LoopJob(min_nodes=2, max_nodes=4).between(0, 1)
    job.back(0, 1)
    assert job.members() == ["a0", "a1", "a9"]
    job.linking(0)
    job.feed(Lost("a0"))
    job.feed(Lost("a1"))
    job.say("a9", Linked(job.state.last_round, recovers=True, last_run=1))
    job.back(9)
    job.say("a9", Leave())
    assert job.members() == ["a9"] and job.stepless


def test_who_was_started_in_a_round_has_its_state_once_it_began_a_run() -> None:
    job = LoopJob(min_nodes=2, max_nodes=4).between(0, 1)
    job.back(0, 1)
    job.linking(0, 1)
    job.say("a9", Linked(job.state.last_round, recovers=True))  # its processes are there
    job.feed(Lost("a1"))
    job.say("a0", Leave(60.0))
    job.back(0, 9)
    assert not job.dismissed(0)


def test_a_new_coordinator_takes_no_newcomer_for_one_that_has_the_state() -> None:
    job = LoopJob(min_nodes=1, max_nodes=4)
    for index in (0, 1):
        hello = Hello(f"a{index}", index, f"10.0.0.{index}", last_round=4, holds=index == 0)
        job.say(f"a{index}", hello, Join(5000 + index, live=True, round=4))
    assert [job.state.agents[f"a{index}"].holds for index in (0, 1)] == [4, 0]
    job.say("a0", Leave(60.0))
    assert not job.dismissed(0)


def test_who_waits_with_a_part_while_a_round_is_adopted_takes_it_into_the_next_one() -> None:
    before = ShardedJob(min_nodes=2, max_nodes=4).training(0, 1, 2)
    job = ShardedJob(min_nodes=2, max_nodes=4)
    tells = {"last_round": 1, "sharded": True}
    job.say("a2", Hello("a2", 2, "10.0.0.2", holds=True, **tells), Join(5002, live=True, round=1))
    for index in (0, 1):
        running = {"round": before.state.round, "linked": True, "recovers": True, **tells}
        job.say(f"a{index}", Hello(f"a{index}", index, f"10.0.0.{index}", **running))
    assert job.state.phase is Phase.ADOPTING
    job.say("a2", Leave(60.0))
    assert not job.dismissed(2)
    job.pass_time(10.0)
    job.back(0, 1)
    assert job.members() == ["a0", "a1", "a2"]


def test_electors_are_told_of_a_last_round_alone_while_others_wait() -> None:
    """Told of another round at each word, they would agree to none."""
    job = LoopJob(min_nodes=2, max_nodes=6)
    for index in range(5):
        job.say(f"a{index}", Hello(f"a{index}", index, f"10.0.0.{index}", port=7), Join(5000))
    job.pass_time(0.5)
    job.linking(0, 1, 2, 3, 4)
    for index in (1, 2, 3, 4):
        job.say(f"a{index}", WorkersFailed(1))
    job.back(0)
    job.pass_time(60.0)
    job.say("a0", Leave(60.0))
    told = job.last("a1", Electorate)
    job.join(7)
    job.back(7)
    job.pass_time(1.0)
    assert job.last("a1", Electorate) == told
    for index in range(5):
        job.say(f"a{index}", Taken(told.round))
    assert job.members() == ["a0"] and job.stepless


class Member(FakeAgent):
    def __init__(self, index: int) -> None:
        super().__init__(f"a{index}", index, recovers=True)
        self.trained = 0
        """The newest round whose state its workers may have; 0: they have none."""

    def hello(self) -> Hello:
        return replace(super().hello(), holds=self.trained > 0)

    @property
    def newest(self) -> int:
        """That round, once it has read what it was sent."""
        coming = [one.round for one in self.inbox if isinstance(one, Round)]
        return max([self.trained, *coming]) if self.trained else 0

    def read(self) -> list[AgentMessage]:
        if self.trained and isinstance(self.inbox[0], Round):
            self.trained = self.inbox[0].round
        said = super().read()
        if STARTED in self.inbox:  # they have failed meanwhile
            return [WorkersFailed(s.round) if isinstance(s, Linked) else s for s in said]
        for one in said:
            self.trained = one.round if isinstance(one, Linked) else self.trained
        return said


@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_last_with_the_newest_state_stands_at_a_fence_before_it_goes(
    seed: int, least: int, most: int, unit: int, failures: int, anew: bool
) -> None:
    """With more agents than places, whole units, failures and a new coordinator, in any order."""
    draw = Random(seed)
    world = {f"a{index}": Member(index) for index in range(draw.randint(least + 1, 7))}
    chosen = Settings(least, -(-max(least, most) // unit) * unit, node_unit=unit)
    state, now = State(settings=chosen, started=0.0), 0.0

    def feed(event: Any) -> None:
        nonlocal state
        state, effects = step(state, event, now)
        for effect in effects:
            if (agent := world.get(effect.agent)) is None:
                continue
            if not isinstance(effect.message, Dismissed):
                agent.inbox.append(effect.message)
                continue
            del world[agent.name]
            others = max((one.newest for one in world.values()), default=0)
            assert agent.fenced or agent.trained <= others, f"{agent.name} took all along"

    def say(agent: Member, *said: AgentMessage) -> None:
        for one in said:
            feed(Received(agent.name, one))

    for agent in list(world.values()):
        say(agent, agent.hello(), *agent.restart())
    begun, quiet, leavers = False, 0, draw.randint(1, len(world))
    for _ in range(4000):
        ready = [agent for agent in world.values() if agent.inbox]
        begun = begun or (state.phase is Phase.RUNNING and not ready)
        chance = draw.random() if begun else 1.0
        staying = [agent for agent in world.values() if not agent.leaving and agent.trained]
        inside = [agent for agent in world.values() if agent.round is not None]
        if chance < 0.06 and leavers and staying:
            leavers -= 1
            agent = draw.choice(staying)
            agent.leaving = True
            say(agent, Leave(600.0))
        elif chance < 0.08 and failures and inside:
            failures -= 1
            agent = draw.choice(inside)
            agent.trained = 0
            assert agent.round is not None
            say(agent, WorkersFailed(agent.round.round))
            agent.fail()
        elif chance < 0.083 and anew:
            anew, state = False, State(settings=chosen, started=now)
            for agent in list(world.values()):
                agent.inbox = [one for one in agent.inbox if one is STARTED]
                waits = agent.joined and agent.round is None
                say(agent, agent.hello(), *[agent.join(agent.last_round)] * waits)
        elif ready and draw.random() < 0.9:
            agent = draw.choice(ready)
            say(agent, *agent.read())
        else:
            now += 0.05
            for agent in list(world.values()):
                say(agent, Heartbeat())
            feed(Tick())
            quiet = 0 if ready or any(one.leaving for one in world.values()) else quiet + 1
            if quiet > 30:
                break
    assert not any(agent.leaving for agent in world.values()), "a leaver was forgotten"


def test_an_excluded_node_with_a_part_of_the_state_keeps_nobody_from_training() -> None:
    job = ShardedJob(min_nodes=2, max_nodes=4).training(0, 1, 2, 3)
    node = job.state.agents["a3"].node
    job.feed(FaultyNodes({node: "broken"}))
    job.back(0, 1, 2, 3)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1", "a2"] and not job.stepless

    job = ShardedJob(min_nodes=2, max_nodes=4)
    for index in (0, 1, 2, 3):
        hello = Hello(f"a{index}", index, f"10.0.0.{index}", last_round=4, holds=True, sharded=True)
        job.say(f"a{index}", hello)
    job.feed(FaultyNodes({node: "broken"}))
    job.back(0, 1, 2)
    job.pass_time(1.0)
    assert job.members() == ["a0", "a1", "a2"] and not job.stepless, "it is not waited for"
