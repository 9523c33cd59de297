"""The coordinator's state machine: what agents live through, by table and by property."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainer.coordinator.__main__ import main
from trainer.coordinator.failures import KEPT, with_failure
from trainer.coordinator.http import answer, json_answer, serve_http
from trainer.coordinator.message import (
    AgentMessage,
    Committed,
    Dismissed,
    Failed,
    FenceAsk,
    FenceCancel,
    Fenced,
    FenceReply,
    FenceStop,
    Finished,
    Goodbye,
    Heartbeat,
    Hello,
    Join,
    Leave,
    Linked,
    Member,
    Progress,
    Round,
    RoundOver,
    WorkersFailed,
    decode,
    encode_agent,
    encode_coordinator,
)
from trainer.coordinator.model import (
    Drop,
    Effect,
    Lost,
    Phase,
    Received,
    Send,
    Settings,
    State,
    Tick,
)
from trainer.coordinator.server import CoordinatorServer
from trainer.coordinator.state import step
from trainer.coordinator.status import status


class Job:
    """A coordinator and the agents' view of it, with a clock in our hand."""

    def __init__(self, **settings_: Any) -> None:
        self.state = State(settings=Settings(**settings_), started=0.0)
        self.now = 0.0
        self.heard: dict[str, list[Any]] = {}

    def feed(self, event: Any) -> None:
        self.state, effects = step(self.state, event, self.now)
        for effect in effects:
            self._hear(effect)

    def _hear(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.heard.setdefault(effect.agent, []).append(effect.message)

    def say(self, agent: str, *messages: AgentMessage) -> None:
        for message in messages:
            self.feed(Received(agent, message))

    def pass_time(self, seconds: float) -> None:
        """Everybody goes on beating."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += 0.05
            for agent in list(self.state.agents):
                self.say(agent, Heartbeat())
            self.feed(Tick())

    def join(self, *indexes: int) -> None:
        for index in indexes:
            hello = Hello(agent=f"a{index}", pod_index=index, address=f"10.0.0.{index}")
            self.say(f"a{index}", hello, Join(5000 + index))

    def link(self, *indexes: int) -> None:
        assert self.state.round is not None
        for index in indexes:
            self.say(f"a{index}", Linked(self.state.round.round))

    def last(self, agent: str, kind: type[Any]) -> Any:
        return next(m for m in reversed(self.heard[agent]) if isinstance(m, kind))

    def members(self) -> list[str]:
        return [m.agent for m in self.state.round.members] if self.state.round else []

    def running(self, *indexes: int) -> Job:
        self.join(*indexes)
        self.pass_time(0.5)
        self.link(*indexes)
        assert self.state.phase is Phase.RUNNING
        self.heard.clear()
        return self


def test_the_first_round_starts_with_all_who_joined_within_the_grace() -> None:
    job = Job(min_nodes=1, max_nodes=4)
    job.pass_time(1.0)
    job.join(2)
    job.pass_time(0.1)
    job.join(0)
    assert job.state.phase is Phase.FORMING
    job.pass_time(0.3)
    assert job.members() == ["a0", "a2"]
    made = job.last("a2", Round)
    assert (made.round, made.master_address, made.master_port) == (1, "10.0.0.0", 5000)


def test_the_first_round_starts_at_once_when_everybody_is_there() -> None:
    job = Job(min_nodes=1, max_nodes=2)
    job.pass_time(0.5)
    job.join(1, 0)
    assert job.members() == ["a0", "a1"]


def test_too_few_wait() -> None:
    job = Job(min_nodes=2, max_nodes=4)
    job.join(0)
    job.pass_time(30)
    assert job.state.phase is Phase.FORMING
    job.join(1)
    job.pass_time(0.4)
    assert job.members() == ["a0", "a1"]


def test_joiners_are_let_in_together_by_one_fence_at_a_common_step() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1)
    job.join(2)
    job.pass_time(0.2)
    job.join(3)
    job.pass_time(0.2)
    assert job.state.phase is Phase.RUNNING
    job.pass_time(0.15)
    fence = job.last("a0", FenceAsk).fence
    job.say("a0", FenceReply(fence, 7))
    assert job.state.phase is Phase.FENCING and FenceStop not in map(type, job.heard["a0"])
    job.say("a1", FenceReply(fence, 8))
    assert job.last("a0", FenceStop) == FenceStop(fence, 1, 9, False)
    job.say("a0", Fenced(fence, 9))
    job.say("a1", Fenced(fence, 9))
    assert job.last("a1", RoundOver).round == 1
    assert job.state.phase is Phase.RESTARTING
    job.join(1)
    assert job.state.phase is Phase.RESTARTING
    job.join(0)
    assert job.members() == ["a0", "a1", "a2", "a3"]
    assert job.state.rounds[-1].reason == "worker 2, 3 joined"


def test_a_leaver_leaves_at_the_fence_and_the_rest_go_on() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    job.say("a1", Leave())
    fence = job.last("a1", FenceAsk).fence
    for agent in ("a0", "a1", "a2"):
        job.say(agent, FenceReply(fence, 3))
    assert job.last("a1", FenceStop).leaving and not job.last("a0", FenceStop).leaving
    for agent in ("a0", "a1", "a2"):
        job.say(agent, Fenced(fence, 4))
    assert isinstance(job.last("a1", Dismissed), Dismissed)
    job.join(0, 2)
    assert job.members() == ["a0", "a2"]
    assert job.state.rounds[-1].reason == "worker 1 left"


def test_a_leaver_does_not_wait_for_workers_that_never_link() -> None:
    job = Job(min_nodes=1, max_nodes=4)
    job.join(0, 1)
    job.pass_time(0.5)
    job.say("a1", Leave())
    assert job.state.phase is Phase.RUNNING
    job.pass_time(2.1)
    assert job.state.phase is Phase.RESTARTING
    job.last("a1", Dismissed)


def test_a_fence_that_nobody_answers_is_broken_for_a_leaver() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1)
    job.say("a1", Leave())
    job.pass_time(10.1)
    assert job.state.phase is Phase.RESTARTING


def test_survivors_restart_at_once_when_a_worker_fails() -> None:
    job = Job(min_nodes=1, max_nodes=4).running(0, 1, 2)
    job.say("a1", WorkersFailed(1))
    for agent in ("a0", "a1", "a2"):
        assert job.last(agent, RoundOver).round == 1
    job.join(0, 2)
    assert job.state.phase is Phase.RESTARTING, "the failed one comes back too"
    job.join(1)
    assert job.members() == ["a0", "a1", "a2"]


def test_a_round_that_waiting_workers_do_not_enter_is_ended() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for agent in ("a0", "a1"):
        job.say(agent, Linked(1, recovers=True))
    job.say("a0", WorkersFailed(1))
    job.say("a0", Join(5000, live=True))
    job.say("a1", Join(5001, live=True))
    assert job.state.phase is Phase.RUNNING and job.state.last_round == 2
    job.say("a0", Linked(2, recovers=True))
    job.pass_time(59.0)
    assert job.state.phase is Phase.RUNNING, "a large state takes its time"
    job.pass_time(2.0)
    assert job.last("a0", RoundOver) == RoundOver(2, "worker 1 did not take its place in time")


def test_joining_again_means_the_workers_failed() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    job.say("a0", Join(1))
    assert job.last("a1", RoundOver).round == 1


def test_a_silent_agent_is_lost_after_the_timeout_and_its_stream_is_closed() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    effects: list[Effect] = []
    for _ in range(25):
        job.now += 0.05
        job.say("a0", Heartbeat())
        job.state, more = step(job.state, Tick(), job.now)
        effects += more
    assert Drop("a1") in effects
    assert any(isinstance(e, Send) and isinstance(e.message, RoundOver) for e in effects)


def test_our_own_pause_is_not_held_against_the_agents() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.now += 5.0
    job.feed(Tick())
    assert job.state.phase is Phase.RUNNING


def test_below_the_minimum_the_rest_wait_for_a_replacement() -> None:
    job = Job(min_nodes=2, max_nodes=4).running(0, 1)
    job.feed(Lost("a1"))
    job.join(0)
    job.pass_time(60)
    assert job.state.phase is Phase.FORMING
    job.join(1)
    job.pass_time(0.4)
    assert job.members() == ["a0", "a1"]


def test_spares_that_make_no_whole_node_unit_disturb_nobody() -> None:
    job = Job(min_nodes=2, max_nodes=4, node_unit=2).running(0, 1)
    job.join(2)
    job.pass_time(5)
    assert job.state.phase is Phase.RUNNING
    job.join(3)
    job.pass_time(1.1)
    assert job.state.phase is Phase.FENCING


def test_a_complete_job_sends_joiners_home() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0)
    job.say("a0", Finished(1))
    job.join(1)
    job.last("a1", Dismissed)


def adopted(**changes: Any) -> Job:
    """A restarted coordinator that hears from one of the two members of round 5."""
    job = Job(min_nodes=1, max_nodes=4)
    old = Round(5, (Member("a0", 0, "10.0.0.0"), Member("a1", 1, "10.0.0.1")), "10.0.0.0", 1, "x")
    hello = Hello("a0", 0, "10.0.0.0", 5, old, step=70, committed_step=60, linked=True)
    job.say("a0", replace(hello, **changes))
    assert job.state.phase is Phase.ADOPTING
    job.heard.clear()
    return job


def hello_again(job: Job, **changes: Any) -> None:
    hello = Hello("a1", 1, "10.0.0.1", 5, job.state.round, step=71, linked=True)
    job.say("a1", replace(hello, **changes))


def test_a_restarted_coordinator_takes_over_the_running_round() -> None:
    job = adopted()
    job.pass_time(1.0)
    hello_again(job)
    assert job.state.phase is Phase.RUNNING
    assert not any(job.heard.values())
    assert (job.state.step, job.state.committed_step, job.state.last_round) == (71, 60, 5)


def test_a_member_that_does_not_come_back_is_lost_after_the_grace() -> None:
    job = adopted()
    job.pass_time(2.5)
    assert job.state.phase is Phase.ADOPTING
    job.pass_time(1.0)
    job.last("a0", RoundOver)
    job.join(0)
    assert job.members() == ["a0"] and job.state.last_round == 6


def test_a_replaced_member_ends_the_adopted_round_at_once() -> None:
    job = adopted()
    job.say("new", Hello("new", 1, "10.0.0.9"))
    job.last("a0", RoundOver)


def test_a_stop_step_told_to_one_rank_holds_for_all_after_a_restart() -> None:
    job = adopted(fence=9, stop_step=73)
    hello_again(job, fence=9)
    assert job.last("a1", FenceStop) == FenceStop(9, 5, 73, False)
    job.say("a0", Fenced(9, 73))
    job.say("a1", Fenced(9, 73))
    job.last("a0", RoundOver)


def test_a_fence_without_a_stop_step_is_called_off_after_a_restart() -> None:
    job = adopted(fence=9)
    hello_again(job)
    assert job.last("a0", FenceCancel) == FenceCancel(9)
    assert job.state.phase is Phase.RUNNING


def test_a_step_is_committed_once_all_have_it_in_memory() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a0", Committed(1, 20, in_memory=True))
    assert job.state.committed_step == -1  # lost with one node, it would be lost
    job.say("a1", Committed(1, 10, in_memory=True))
    assert job.state.committed_step == 10
    job.say("a1", Committed(1, 20, in_memory=True))
    assert job.state.committed_step == 20
    job.say("a0", Committed(1, 30, in_memory=True), Committed(1, 30))
    assert job.state.committed_step == 30  # in storage


def test_commits_that_know_a_later_round_end_this_one_so_no_number_is_used_twice() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)  # all was lost: it began at 1 again
    job.say("a0", Committed(57, 400))
    assert job.last("a1", RoundOver).reason == "the commits know of round 57"
    job.join(0, 1)
    assert job.state.round is not None and job.state.round.round == 58
    job.link(0, 1)
    job.say("a0", Committed(57, 400), Committed(58, 410))
    assert job.state.phase is Phase.RUNNING and job.state.committed_step == 410


def test_what_is_in_memory_knows_its_round_too() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", Committed(57, 400, in_memory=True))
    assert job.last("a0", RoundOver).reason == "the commits know of round 57"
    assert job.state.last_round == 57 and job.state.committed_step == -1


def test_killed_while_forming_it_forms_with_those_who_join_again() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    for index in (1, 0):
        hello = Hello(f"a{index}", index, "10.0.0.1", last_round=6)
        job.say(f"a{index}", hello, Join(1))
    job.pass_time(0.4)
    assert job.state.round is not None and job.state.round.round == 7
    assert job.members() == ["a0", "a1"]


def failure(number: int, rank: int, time: float) -> Failed:
    return Failed(number, rank, rank, 0, 100 + rank, 1, "ValueError: x", "stack", time)


def test_failures_are_told_by_time_once_and_with_their_round() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    job.say("a1", failure(1, 1, 20.25))
    job.say("a0", failure(1, 0, 20.5), failure(1, 0, 20.5))
    job.say("a1", failure(1, 1, 20.25))
    told = status(job.state, "ns/job", job.now, 0.0)
    assert [(f["rank"], f["time"]) for f in told["failures"]] == [(1, 20.25), (0, 20.5)]
    assert told["failures_total"] == 2
    json.dumps(told)


def test_of_many_failures_each_round_keeps_its_first() -> None:
    known: tuple[Failed, ...] = (failure(1, 0, 1.0),)
    for rank in range(3 * KEPT):
        known = with_failure(known, failure(2, rank, 10.0 + rank))
    known = with_failure(known, failure(3, 0, 9999.0))
    assert len(known) == KEPT
    assert {1, 2, 3} == {one.round for one in known}
    assert min(one.time for one in known if one.round == 2) == 10.0
    long = with_failure((), Failed(message="m" * 10**6, stack="s" * 10**6))[0]
    assert len(long.message) + len(long.stack) < 6000


def test_status_tells_speed_and_pauses() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for number in range(1, 11):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number), Committed(1, number - 1))
    ended = job.now
    job.say("a1", WorkersFailed(1))
    job.join(0, 1)
    job.pass_time(0.2)
    job.say("a0", Progress(2, 10))
    told = status(job.state, "ns/job", job.now, 1000.0 + job.now)
    json.dumps(told)
    assert told["phase"] == "running" and told["world"] == 2 and told["ranks"] == {"0": 0, "1": 1}
    assert told["committed_step"] == 9 and told["step"] == 10
    assert told["rounds"][1]["pause_seconds"] == pytest.approx(job.now - ended)
    assert told["rounds"][1]["reason"] == "workers of worker 1 failed"


def test_speeds_are_samples_a_second_at_each_size() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0)
    for number in range(1, 32):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number, samples=number * 32))
    assert status(job.state, "ns/job", job.now, 0.0)["speeds"] == {"1": pytest.approx(320)}
    job.join(1)
    job.pass_time(0.5)
    job.say("a0", WorkersFailed(1))
    job.join(0, 1)
    for number in range(32, 36):
        job.pass_time(0.1)
        job.say("a0", Progress(2, number, samples=number * 64))
    found = status(job.state, "ns/job", job.now, 0.0)["speeds"]
    assert found.keys() == {"1"}, "a round that has just begun says nothing of its speed yet"
    for number in range(36, 70):
        job.pass_time(0.1)
        job.say("a0", Progress(2, number, samples=number * 64))
    found = status(job.state, "ns/job", job.now, 0.0)["speeds"]
    assert found == {"1": pytest.approx(320), "2": pytest.approx(640)}


def test_without_known_samples_speeds_are_steps_times_world() -> None:
    job = Job(min_nodes=2, max_nodes=2).running(0, 1)
    for number in range(1, 32):
        job.pass_time(0.1)
        job.say("a0", Progress(1, number))
    assert status(job.state, "ns/job", job.now, 0.0)["speeds"] == {"2": pytest.approx(20)}


@pytest.mark.parametrize(
    "message",
    [
        Hello("a", 1, "h", 2, Round(3, (Member("b", 1, "c"),), "d", 4, "e"), pids=(5, 6)),
        Hello("a"),
        Join(7),
        Progress(1, 2, 0.5, 640),
        Linked(3, (8,)),
        Goodbye(),
    ],
)
def test_messages_survive_the_wire(message: Any) -> None:
    assert decode(encode_agent(message)) == message


def test_orders_survive_the_wire() -> None:
    for message in (FenceStop(1, 2, 3, True), Dismissed("x"), Round(1, (Member("a", 0, "b"),))):
        assert decode(encode_coordinator(message)) == message


def test_other_paths_are_refused() -> None:
    server = CoordinatorServer("ns/job", Settings(1, 1))
    assert answer(b"GET / HTTP/1.1\r\n\r\n", server.respond).code.startswith("404")
    assert answer(b"POST /status HTTP/1.1\r\n\r\n", server.respond).code.startswith("405")


async def test_status_over_http() -> None:
    server = await serve_http("127.0.0.1", 0, lambda path, _: json_answer("200 OK", {"step": 3}))
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
    told = await asyncio.wait_for(reader.read(), 5)
    assert told.startswith(b"HTTP/1.1 200") and json.loads(told.split(b"\r\n\r\n")[1]) == {
        "step": 3
    }
    writer.close()
    server.close()


def test_impossible_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port=1", "--min=3", "--max=2"]) == 2
    assert "expected 1 <= min <= max, found min 3, max 2" in capsys.readouterr().err


# ---- by property: agents that do anything, at any time, and a coordinator that never wedges


class FakeAgent:
    """An agent that keeps the protocol: what it answers, it answers in any order and late."""

    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index
        self.round: Round | None = None
        self.inbox: list[Any] = []
        self.linked = self.leaving = self.joined = False
        self.fence = 0
        self.stop = -1
        self.fenced = False
        self.step = -1
        self.last_round = 0

    def hello(self) -> Hello:
        return Hello(
            self.name,
            self.index,
            f"10.0.0.{self.index}",
            self.last_round,
            self.round,
            self.step,
            linked=self.linked,
            leaving=self.leaving,
            fence=self.fence,
            stop_step=self.stop,
            fenced=self.fenced,
        )

    def read(self) -> list[AgentMessage]:
        """Handles the oldest message; what it says to it."""
        message = self.inbox.pop(0)
        if isinstance(message, Round):
            self.round, self.joined, self.linked = message, False, True
            self.last_round = max(self.last_round, message.round)
            self.fence, self.stop, self.fenced, self.step = 0, -1, False, -1
            return [Linked(message.round)]
        if isinstance(message, FenceAsk) and self.in_round(message.round):
            self.fence, self.stop, self.fenced = message.fence, -1, False
            return [FenceReply(message.fence, self.step)]
        if isinstance(message, FenceStop) and self.in_round(message.round):
            self.fence, self.stop, self.fenced = message.fence, message.step, True
            self.step = max(self.step, message.step)
            return [Fenced(message.fence, message.step)]
        if isinstance(message, FenceCancel) and message.fence == self.fence:
            self.fence = 0
        if isinstance(message, RoundOver) and self.in_round(message.round):
            return self.restart()
        return []

    def in_round(self, number: int) -> bool:
        return self.round is not None and self.round.round == number

    def restart(self) -> list[AgentMessage]:
        self.round, self.joined, self.linked, self.fence, self.fenced = None, True, False, 0, False
        return [Join(1000 + self.index)]


class AnyOrder(RuleBasedStateMachine):
    """Joins, crashes, leaves, losses and coordinator restarts in any order."""

    @initialize(low=st.integers(1, 3), more=st.integers(0, 3), unit=st.integers(1, 2))
    def start(self, low: int, more: int, unit: int) -> None:
        self.settings = Settings(low * unit, (low + more) * unit, unit)
        self.now = 0.0
        self.agents: dict[str, FakeAgent] = {}
        self.count = 0
        self.known: dict[int, Round] = {}
        self.leavers_gone: list[str] = []
        self.restart_state()

    def restart_state(self) -> None:
        self.state = State(settings=self.settings, started=self.now)

    def feed(self, event: Any) -> None:
        before = self.state
        self.state, effects = step(self.state, event, self.now)
        for effect in effects:
            agent = self.agents.get(effect.agent)
            if agent is None or isinstance(effect, Drop):
                continue
            if isinstance(effect.message, Dismissed):
                self.depart(agent.name)
            else:
                agent.inbox.append(effect.message)
        made = self.state.round
        if made is not None and self.state.rounds[len(before.rounds) :]:
            self.check_round(made)

    def check_round(self, made: Round) -> None:
        size = len(made.members)
        assert self.settings.min_nodes <= size <= self.settings.max_nodes
        assert size % self.settings.node_unit == 0
        assert self.known.get(made.round, made) == made, "a round number was used twice"
        indexes = [member.pod_index for member in made.members]
        assert indexes == sorted(indexes), "ranks follow the pod index"

    def depart(self, name: str) -> None:
        if self.agents.pop(name, None) is not None:
            self.leavers_gone.append(name)

    @rule(index=st.integers(0, 7))
    def new_agent(self, index: int) -> None:
        if any(agent.index == index for agent in self.agents.values()):
            return
        self.count += 1
        agent = self.agents[f"{index}-{self.count}"] = FakeAgent(f"{index}-{self.count}", index)
        self.feed(Received(agent.name, agent.hello()))
        for message in agent.restart():
            self.feed(Received(agent.name, message))

    @rule(pick=st.integers(0, 100))
    def read_one(self, pick: int) -> None:
        ready = [agent for _, agent in sorted(self.agents.items()) if agent.inbox]
        if ready:
            self.read(ready[pick % len(ready)])

    def read(self, agent: FakeAgent) -> None:
        for message in agent.read():
            self.feed(Received(agent.name, message))
        if agent.round is not None:
            self.known[agent.round.round] = agent.round

    @rule(pick=st.integers(0, 100))
    def workers_fail(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None and agent.round is not None:
            self.feed(Received(agent.name, WorkersFailed(agent.round.round)))
            for message in agent.restart():
                self.feed(Received(agent.name, message))

    @rule(pick=st.integers(0, 100))
    def lose(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None:
            del self.agents[agent.name]
            self.feed(Lost(agent.name))

    @rule(pick=st.integers(0, 100))
    def leave(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None and not agent.leaving:
            agent.leaving = True
            self.feed(Received(agent.name, Leave()))

    @rule(pick=st.integers(0, 100), by=st.integers(1, 3))
    def advance(self, pick: int, by: int) -> None:
        agent = self.pick(pick)
        if agent is not None and agent.round is not None and agent.fence == 0:
            agent.step += by
            self.feed(Received(agent.name, Progress(agent.round.round, agent.step)))

    @rule(order=st.randoms(use_true_random=False))
    def coordinator_restarts(self, order: Any) -> None:
        self.restart_state()
        agents = list(self.agents.values())
        # Soft state: what nobody alive knows is forgotten, and may be used again.
        told = max((agent.last_round for agent in agents), default=0)
        self.known = {number: made for number, made in self.known.items() if number <= told}
        order.shuffle(agents)
        for agent in agents:
            agent.inbox.clear()
            self.feed(Received(agent.name, agent.hello()))
            if agent.joined and agent.name in self.agents:
                self.feed(Received(agent.name, Join(1)))

    @rule(seconds=st.sampled_from([0.05, 0.4, 1.2]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += min(0.2, seconds)
            for name in list(self.agents):
                self.feed(Received(name, Heartbeat()))
            self.feed(Tick())

    def pick(self, number: int) -> FakeAgent | None:
        names = sorted(self.agents)
        return self.agents[names[number % len(names)]] if names else None

    @invariant()
    def attached_agents_are_the_rounds_members(self) -> None:
        if not hasattr(self, "state"):
            return
        attached = {agent.agent for agent in self.state.agents.values() if agent.attached}
        members = {m.agent for m in self.state.round.members} if self.state.round else set()
        assert attached <= members
        if self.state.phase in (Phase.RUNNING, Phase.FENCING):
            assert attached == members

    def teardown(self) -> None:
        """Left alone, all settles: fences resolve, leavers are gone, whoever can run runs."""
        if not hasattr(self, "state"):
            return
        quiet = 0
        while quiet < 3 and self.now < 10_000:
            for agent in list(self.agents.values()):
                while agent.inbox and agent.name in self.agents:
                    self.read(agent)
            before = self.state.phase, self.state.last_round
            self.pass_time(2.0)
            leaving = any(agent.leaving for agent in self.agents.values())
            resting = self.state.phase in (Phase.RUNNING, Phase.FORMING) and not leaving
            still = before == (self.state.phase, self.state.last_round)
            quiet = quiet + 1 if resting and still else 0
        assert not any(agent.leaving for agent in self.agents.values()), "a leaver was forgotten"
        possible = self.settings.size(len(self.agents))
        if possible:
            assert self.state.phase is Phase.RUNNING
            assert self.state.round is not None and len(self.state.round.members) == possible
        else:
            assert self.state.phase is Phase.FORMING


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 4), st.integers(0, 20))
def test_a_size_is_a_multiple_within_the_bounds(low: int, more: int, unit: int, n: int) -> None:
    limits = Settings(low * unit, (low + more) * unit, unit)
    size = limits.size(n)
    assert size == 0 or (limits.min_nodes <= size <= min(n, limits.max_nodes))
    assert size % unit == 0
