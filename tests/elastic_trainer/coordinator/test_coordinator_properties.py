"""Agents that do anything, at any time, and a coordinator that never wedges."""

from __future__ import annotations

from typing import Any

from elastic_trainer.coordinator.agents import Agents
from elastic_trainer.coordinator.leavers import last_round, wait_until
from elastic_trainer.coordinator.model import (
    Checking,
    Drop,
    FaultyNodes,
    Lost,
    NewRange,
    Phase,
    Received,
    Settings,
    State,
    Tick,
)
from elastic_trainer.coordinator.state import step
from elastic_trainer.coordinator.transitions import TRANSITIONS
from elastic_trainer.protocol.message import (
    Completed,
    Dismissed,
    Doubted,
    Failed,
    FenceAsk,
    FenceStop,
    Finished,
    Heartbeat,
    Leave,
    Linked,
    Progress,
    Round,
    Tables,
    WorkersFailed,
    WorkersSucceeded,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.elastic_trainer.coordinator.world import STARTED, TABLES, FakeAgent
from tests.examples import examples


def _reachable() -> set[tuple[Phase, Phase]]:
    """By one event: phases in which nothing has to be waited for are passed through."""
    ways = {(one.before, one.after) for one in TRANSITIONS}
    found = ways | {(phase, phase) for phase in Phase}
    for passed in (Phase.ADOPTING, Phase.COMPLETING, Phase.FORMING, Phase.RESTARTING):
        found |= {(a, d) for a, b in found for c, d in ways if b is c is passed}
    return found


POSSIBLE = _reachable()


def bounded(low: int, more: int, unit: int) -> Settings:
    return Settings(
        low * unit, (low + more) * unit, unit, recheck_seconds=20.0, exclude_seconds=100.0
    )


class AnyOrder(RuleBasedStateMachine):
    """Joins, crashes, leaves, losses, new ranges and coordinator restarts in any order."""

    @initialize(
        low=st.integers(1, 3), more=st.integers(0, 3), unit=st.integers(1, 2), tables=st.booleans()
    )
    def start(self, low: int, more: int, unit: int, tables: bool) -> None:
        self.settings = bounded(low, more, unit)
        self.tables = TABLES if tables else Tables(())
        self.now = 0.0
        self.agents: dict[str, FakeAgent] = {}
        self.count = 0
        self.known: dict[int, Round] = {}
        self.leavers_gone: list[str] = []
        self.ranged = False
        """The range is another one than when the round was made."""
        self.ended: dict[int, set[str]] = {}
        """By round, the agents whose workers have all ended with code 0."""
        self.commits: dict[int, int] = {}
        """By round, the first fence at which an agent has heard that all commit to storage."""
        self.restart_state()

    def restart_state(self) -> None:
        self.state = State(settings=self.settings, started=self.now)

    def feed(self, event: Any) -> None:
        before = self.state
        self.state, effects = step(self.state, event, self.now)
        assert (before.phase, self.state.phase) in POSSIBLE
        for effect in effects:
            agent = self.agents.get(effect.agent)
            if agent is None or isinstance(effect, Drop):
                continue
            if isinstance(effect.message, Dismissed | Completed):
                self.depart(agent.name)
            else:
                agent.inbox.append(effect.message)
        made = self.state.round
        if self.state.phase is Phase.FINISHED:
            assert made is not None
            ended = self.ended.get(made.round, set())
            assert {m.agent for m in made.members} <= ended, "complete, though one did not end well"
            untold = self.agents.keys() & self.state.agents.keys()
            assert not untold, "training is complete, and the coordinator may go at once"
        if made is not None and self.state.rounds[len(before.rounds) :]:
            self.check_round(made)

    def check_round(self, made: Round) -> None:
        size = len(made.members)
        if made.round not in self.known:  # else it was taken over
            self.ranged = False
            enough = self.settings.min_nodes <= size <= self.settings.max_nodes
            assert made.stepless or (enough and size % self.settings.node_unit == 0)
        assert self.known.get(made.round, made) == made, "a round number was used twice"
        indexes = [member.pod_index for member in made.members]
        assert indexes == sorted(indexes), "ranks follow the pod index"

    def depart(self, name: str) -> None:
        if self.agents.pop(name, None) is not None:
            self.leavers_gone.append(name)

    @rule(index=st.integers(0, 7), recovers=st.booleans())
    def new_agent(self, index: int, recovers: bool) -> None:
        if any(agent.index == index for agent in self.agents.values()):
            return
        self.count += 1
        name = f"{index}-{self.count}"
        agent = self.agents[name] = FakeAgent(name, index, recovers)
        self.feed(Received(agent.name, agent.hello()))
        for message in agent.restart():
            self.feed(Received(agent.name, message))

    @rule(pick=st.integers(0, 100))
    def read_one(self, pick: int) -> None:
        ready = [agent for _, agent in sorted(self.agents.items()) if agent.inbox]
        if ready:
            self.read(ready[pick % len(ready)])

    def read(self, agent: FakeAgent) -> None:
        heard, number = agent.inbox[0], agent.round.round if agent.round is not None else 0
        if isinstance(heard, FenceAsk) and agent.in_round(heard.round):
            self.commits.pop(number, None)
        for message in agent.read():
            self.feed(Received(agent.name, message))
            if isinstance(message, Linked):
                self.feed(Received(agent.name, self.tables))
        if agent.round is not None:
            self.known[agent.round.round] = agent.round
        if isinstance(heard, FenceStop) and agent.fence == heard.fence and agent.in_round(number):
            first = self.commits.get(number, heard.fence + 1)
            assert heard.commit or heard.fence < first, "one waits for the others in vain"
            if heard.commit:
                self.commits[number] = min(first, heard.fence)

    @rule(pick=st.integers(0, 100))
    def workers_fail(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None and agent.round is not None:
            self.feed(Received(agent.name, WorkersFailed(agent.round.round)))
            agent.fail()

    @rule(pick=st.integers(0, 100))
    def a_worker_doubts_its_round(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None:
            self.doubt(agent)

    def doubt(self, agent: FakeAgent) -> None:
        if agent.round is not None:
            agent.doubts += 1
            agent.doubt = agent.doubts
            self.feed(Received(agent.name, Doubted(agent.round.round, agent.doubt)))

    def read_all(self) -> None:
        for agent in list(self.agents.values()):
            while agent.inbox and agent.name in self.agents:
                self.read(agent)

    @rule(pick=st.integers(0, 100))
    def workers_leave_the_loop(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None and agent.round is not None and not agent.finished:
            agent.finished = True
            self.feed(Received(agent.name, Finished(agent.round.round)))

    @rule(pick=st.integers(0, 100))
    def workers_end_well(self, pick: int) -> None:
        agent = self.pick(pick)
        if agent is not None and agent.round is not None and not agent.succeeded:
            self.end_well(agent)

    @rule(rarely=st.integers(0, 3))
    def all_workers_end_well(self, rarely: int) -> None:
        for agent in list(self.agents.values()):
            if rarely == 0 and agent.round is not None and agent.name in self.agents:
                self.end_well(agent)

    def end_well(self, agent: FakeAgent) -> None:
        assert agent.round is not None
        agent.finished = agent.succeeded = True
        self.ended.setdefault(agent.round.round, set()).add(agent.name)
        self.feed(Received(agent.name, WorkersSucceeded(agent.round.round)))

    @rule(nodes=st.sets(st.integers(0, 7), max_size=3))
    def a_node_check_ends(self, nodes: set[int]) -> None:
        if self.state.recheck is not None:
            self.feed(Checking(True))
            self.feed(FaultyNodes({f"worker {index}": "wrong" for index in nodes}))
            assert not self.state.checking

    @rule(
        pick=st.integers(0, 100),
        error=st.sampled_from(["", "E at a:1", "E at b:2"]),
        node_fault=st.sampled_from(["", "", "GPU hardware"]),
    )
    def a_worker_ends_in_an_error(self, pick: int, error: str, node_fault: str) -> None:
        agent = self.pick(pick)
        if agent is not None and agent.round is not None:
            number = agent.round.round
            self.count += 1
            told = Failed(
                number,
                pid=self.count,
                code=1,
                error="" if node_fault else error,
                step=agent.step,
                node_fault=node_fault,
            )
            self.feed(Received(agent.name, WorkersFailed(number)))
            self.feed(Received(agent.name, told))
            agent.fail()

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
        able = agent is not None and agent.fence == 0 and not agent.finished
        if agent is not None and agent.round is not None and able:
            agent.step += by
            self.feed(Received(agent.name, Progress(agent.round.round, agent.step)))

    @rule(low=st.integers(1, 3), more=st.integers(0, 3))
    def range_changes(self, low: int, more: int) -> None:
        unit = self.settings.node_unit
        self.settings = bounded(low, more, unit)
        self.ranged = True
        members = self.state.round.members if self.state.round else ()
        self.feed(NewRange(self.settings.min_nodes, self.settings.max_nodes))
        after = self.state.round.members if self.state.round else ()
        assert after[: len(members)] == members, "a new range ends no round"

    @rule(order=st.randoms(use_true_random=False))
    def coordinator_restarts(self, order: Any) -> None:
        self.restart_state()
        agents = list(self.agents.values())
        # Soft state: what nobody alive knows is forgotten, and may be used again.
        told = max((agent.last_round for agent in agents), default=0)
        self.known = {number: made for number, made in self.known.items() if number <= told}
        self.commits = {number: fence for number, fence in self.commits.items() if number <= told}
        order.shuffle(agents)
        for agent in agents:
            agent.inbox = [message for message in agent.inbox if message is STARTED]
            if agent.doubt:  # its round ends with the coordinator
                agent.restart()
            self.feed(Received(agent.name, agent.hello()))
            if agent.joined and agent.name in self.agents:
                self.feed(Received(agent.name, agent.join()))

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
    def what_is_counted_as_it_changes_is_what_is_there(self) -> None:
        if not hasattr(self, "state"):
            return
        agents = self.state.agents
        anew = Agents()
        for agent in agents.values():
            anew = anew.with_agent(agent)
            assert agent.expected == (agent.agent in self.state.expected)
            assert agent in agents.on(agent.node)
        assert agents.counts == anew.counts
        assert agents.retrying() == anew.retrying()

    @invariant()
    def a_leaver_waits_only_for_the_next_round_and_while_its_grace_has_time_for_it(self) -> None:
        if not hasattr(self, "state"):
            return
        last = {agent.agent for agent in last_round(self.state, self.now)}
        for agent in self.state.agents.values():
            if agent.gives_state:
                assert agent.leaving and not agent.attached
                assert self.state.phase in (Phase.FORMING, Phase.RESTARTING)
                until = agent.leave_by if agent.agent in last else wait_until(agent, 0.0)
                assert self.now <= until + 0.2, "a tick later"

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
            self.read_all()
            before = self.state.phase, self.state.last_round
            self.pass_time(2.0)
            if self.state.phase is Phase.COMPLETING:  # their scripts come to their end
                for agent in list(self.agents.values()):
                    if agent.round is not None and agent.name in self.agents:
                        self.end_well(agent)
            leaving = any(agent.leaving for agent in self.agents.values())
            over = self.state.phase in (Phase.FAILED, Phase.FINISHED)
            settled = self.state.recheck is None and not self.state.excluded and not leaving
            resting = over or (self.state.phase in (Phase.RUNNING, Phase.FORMING) and settled)
            still = before == (self.state.phase, self.state.last_round)
            quiet = quiet + 1 if resting and still else 0
        assert not any(agent.leaving for agent in self.agents.values()), "a leaver was forgotten"
        for agent in list(self.agents.values()):
            self.doubt(agent)
        self.pass_time(0.2)
        for _ in range(2):  # the question, and the answer
            self.read_all()
        assert not any(agent.doubt for agent in self.agents.values()), "one waits for an answer"
        possible = self.settings.size(len(self.agents))
        if self.state.phase in (Phase.FAILED, Phase.FINISHED):
            assert not self.agents, "an agent was not told that training has failed, or is complete"
        elif self.state.round is not None:
            assert self.state.phase is Phase.RUNNING
            size = len(self.state.round.members)
            assert size == possible or (self.ranged and size > possible), "who fits is let in"
        else:
            assert self.state.phase is Phase.FORMING and not possible


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)


@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 4), st.integers(0, 20))
def test_a_size_is_a_multiple_within_the_bounds(low: int, more: int, unit: int, n: int) -> None:
    limits = Settings(low * unit, (low + more) * unit, unit)
    size = limits.size(n)
    assert size == 0 or (limits.min_nodes <= size <= min(n, limits.max_nodes))
    assert size % unit == 0
