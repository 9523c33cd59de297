"""Agents and coordinators, with everything between them in a test's hand: what is delivered, lost
or late, who dies, and who believes what of whom. Votes, counts and coordinators are the real ones;
there are no clocks, so any order that slowness can bring about is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from elastic_trainer.coordinator.model import Gone, Lost, Received, Send, Settings, State, Tick
from elastic_trainer.coordinator.state import step
from elastic_trainer.protocol.message import (
    Dismissed,
    Electorate,
    FenceAsk,
    Fenced,
    FenceReply,
    FenceStop,
    Goodbye,
    Hello,
    Join,
    Linked,
    Member,
    Progress,
    Round,
    RoundOver,
    Taken,
)
from elastic_trainer.succession.ballot import Ballot, Voter, swear, take, vote
from elastic_trainer.succession.candidacy import Count
from elastic_trainer.succession.electorate import (
    TERMS_OF_A_HOST,
    electorate_of,
    is_newer,
    next_election,
    voters,
)


@dataclass
class Stream:
    """Messages in order, both ways, until either end gives it up."""

    agent: str
    coordinator: Coordinator
    up: list[Any] = field(default_factory=list)
    down: list[Any] = field(default_factory=list)


@dataclass
class Coordinator:
    host: str
    state: State
    now: float = 0.0
    alive: bool = True
    deposed: int = 0
    """The term of a later coordinator that it was told of, and ended."""
    streams: dict[str, Stream] = field(default_factory=dict)

    @property
    def term(self) -> int:
        return self.state.settings.term

    def feed(self, event: Any) -> None:
        before = self.state
        self.state, effects = step(before, event, self.now)
        if self.state.round is not before.round and self.state.last_round > before.last_round:
            self._check_round(before, event)
        for effect in effects:
            stream = self.streams.get(effect.agent)
            if stream is not None and isinstance(effect, Send):
                stream.down.append(effect.message)

    def _check_round(self, before: State, event: Any) -> None:
        """More than half of those who elect agree to a round, or half with who made the last one.

        Others' votes keep two sides apart, too, so that no world may show that this was neglected.
        """
        made = self.state.round
        hello = event.message if isinstance(event, Received) else None
        if not isinstance(hello, Hello):
            hello = None
        if made is None or made.term != self.term or (hello is not None and hello.round == made):
            return  # it was adopted
        told = hello.electorate if hello is not None else None
        known = (
            told if told is not None and is_newer(told, before.electorate) else before.electorate
        )
        own = known is not None and known.term == self.term
        for group in made.groups:
            living = {m.agent for m in group.members if m.agent not in self.state.gone}
            there = living & self.state.agents.keys()
            tie = own and self.host in there
            assert not living or 2 * len(there) + tie > len(living), (made, there, living)

    def depose(self, term: int) -> None:
        self.alive, self.deposed = False, term

    def pass_time(self) -> None:
        self.now += 60.0
        self.feed(Tick(dict.fromkeys(self.state.agents, self.now)))


@dataclass
class Agent:
    name: str
    index: int
    voter: Voter = field(default_factory=Voter)
    current: Round | None = None
    """That its workers are in."""
    stream: Stream | None = None
    alive: bool = True
    gone: set[str] = field(default_factory=set)
    count: Count | None = None
    """Votes for it, while it stands."""
    trained: Round | None = None
    """That its workers made their last step in, which they have live."""
    asked: bool = False
    """It is a new first host, and has asked others."""
    hesitates: bool = False
    """It is a new first host, which asks for no round until others have told whether they train."""
    leaves: bool = False
    """Its workers have ended, and it says goodbye until a coordinator has heard it."""
    left: Round | None = None
    """That its workers were in when they ended."""


class World:
    def __init__(self, agents: int, random: Random) -> None:
        self.random = random
        self.agents = {f"a{i}": Agent(f"a{i}", i) for i in range(agents)}
        self.coordinators: list[Coordinator] = []
        self.terms: dict[int, str] = {}
        self.ballots: list[tuple[str, Ballot]] = []
        """On their way to a voter."""
        self.votes: list[tuple[str, int, str, Any]] = []
        """On their way: candidate, term, voter, vote."""
        self.cut: set[frozenset[str]] = set()
        """Pairs that can't reach one another."""
        self.newest: Round | None = None
        """That made the newest step, which is in storage."""
        self.host("a0", 0, None)

    # ---- what may happen

    def host(self, name: str, term: int, count: Count | None) -> None:
        holder = self.terms.get(term, name)
        assert holder == name or not self.agents[holder].alive, f"two coordinators of term {term}"
        self.terms[term] = name
        state = State(Settings(1, 16, grace=1.0, lost_after=1e9, term=term, host=name), started=0.0)
        if count is not None:
            state = replace(
                state,
                electorate=count.electorate,
                gone=frozenset(count.gone),
                returning=frozenset(count.granted),
            )
        for other in self.coordinators:
            if other.host == name:
                other.alive = False
        self.coordinators.append(Coordinator(name, state))

    def reach(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def dial(self, agent: Agent, coordinator: Coordinator) -> None:
        if not (coordinator.alive and self.reach(agent.name, coordinator.host)):
            return
        self.give_up(agent)
        if agent.voter.sworn > coordinator.term:
            coordinator.depose(agent.voter.sworn)
            return
        agent.voter = swear(agent.voter, coordinator.term)
        old = coordinator.streams.pop(agent.name, None)
        if old is not None:
            coordinator.feed(Lost(agent.name))
        stream = coordinator.streams[agent.name] = Stream(agent.name, coordinator)
        agent.stream = stream
        known = agent.voter.electorate
        hello = Hello(
            agent.name,
            agent.index,
            agent.name,
            last_round=known.round if known else 0,
            round=agent.left if agent.leaves else agent.current,
            linked=agent.current is not None,
            recovers=True,
            term=agent.voter.sworn,
            port=1,
            electorate=known,
        )
        stream.up.append(hello)
        if agent.leaves:
            stream.up.append(Goodbye())
        elif agent.current is None and not agent.hesitates:
            stream.up.append(Join(1, live=True))

    def give_up(self, agent: Agent) -> None:
        """It finds its stream ended, or silent; the coordinator may see that much later."""
        agent.stream = None

    def lose(self, coordinator: Coordinator, name: str) -> None:
        """The coordinator finds an agent's stream ended, or silent."""
        if coordinator.streams.pop(name, None) is not None:
            coordinator.feed(Lost(name))

    def deliver_up(self, stream: Stream) -> None:
        coordinator = stream.coordinator
        current = coordinator.streams.get(stream.agent) is stream and coordinator.alive
        if stream.up and current and self.reach(stream.agent, coordinator.host):
            coordinator.feed(Received(stream.agent, stream.up.pop(0)))

    def deliver_down(self, stream: Stream) -> None:
        agent = self.agents[stream.agent]
        coordinator = stream.coordinator
        if not (stream.down and agent.alive and agent.stream is stream):
            return
        if not self.reach(agent.name, coordinator.host):
            return
        message = stream.down.pop(0)
        if agent.leaves:
            if isinstance(message, Round | Electorate):
                known = electorate_of(message) if isinstance(message, Round) else message
                self._take(agent, known)
            elif isinstance(message, Dismissed):
                self.kill(agent)
        elif isinstance(message, Round):
            agent.current = message
            self._take(agent, electorate_of(message))
            stream.up.append(Linked(message.round, (1,), recovers=True))
        elif isinstance(message, Electorate):
            self._take(agent, message)
        elif isinstance(message, FenceAsk):
            stream.up.append(FenceReply(message.fence, 1))
        elif isinstance(message, FenceStop):
            stream.up.append(Fenced(message.fence, message.step, 1))
        elif isinstance(message, RoundOver) and _round_of(agent) == message.round:
            agent.current = None
            stream.up.append(Join(1, live=True, round=message.round))

    def _take(self, agent: Agent, known: Electorate) -> None:
        agent.voter = take(agent.voter, known)
        assert agent.stream is not None
        agent.stream.up.append(Taken(known.round))

    def stand(self, agent: Agent) -> None:
        """It asks for votes; whether it should is of no matter to safety."""
        known = agent.voter.electorate
        if known is None or agent.leaves:
            return
        term = next_election(agent.voter.sworn, agent.name)
        agent.voter = replace(agent.voter, sworn=term, voted_for=agent.name)
        self.give_up(agent)
        agent.count = Count(agent.name, known, set(agent.gone))
        ballot = Ballot(term, agent.name, agent.name, known.term, known.round)
        self.ballots += [(name, ballot) for name in voters(known) if name != agent.name]
        self._host_if_elected(agent)

    def answer_ballot(self, number: int, willing: bool) -> None:
        name, ballot = self.ballots.pop(number)
        voter = self.agents[name]
        if not (voter.alive and self.reach(name, ballot.candidate)):
            return
        before = voter.voter
        objection = "it leaves" if voter.leaves else "" if willing else "hears its coordinator"
        voter.voter, answer = vote(before, ballot, objection)
        if voter.voter != before:
            self.give_up(voter)
            known = Electorate(ballot.electorate_term, ballot.electorate_round)
            theirs = voter.voter.electorate
            later = theirs is not None and (theirs.term, theirs.round) > (known.term, known.round)
            assert not later, f"{name} elects {ballot.candidate}, which knows less than it does"
        self.votes.append((ballot.candidate, ballot.term, name, answer))

    def count_vote(self, number: int) -> None:
        candidate, term, voter, answer = self.votes.pop(number)
        agent = self.agents[candidate]
        if not (agent.alive and self.reach(candidate, voter)):
            return
        if agent.count is not None and agent.voter.sworn == term:
            agent.count.votes[voter] = answer
            self._host_if_elected(agent)

    def _host_if_elected(self, agent: Agent) -> None:
        count = agent.count
        if count is not None and count.won and agent.voter.voted_for == agent.name:
            agent.count = None
            self.host(agent.name, agent.voter.sworn, count)

    def restart(self, coordinator: Coordinator) -> None:
        """Its process ends, and its agent starts another, which has forgotten all."""
        agent = self.agents[coordinator.host]
        newest = max(c.term for c in self.coordinators if c.host == coordinator.host)
        runs = agent.alive and coordinator.alive and coordinator.term == newest
        if runs and agent.voter.sworn // TERMS_OF_A_HOST == newest // TERMS_OF_A_HOST:
            self.host(agent.name, newest + 1, None)
            agent.hesitates |= agent.asked and agent.voter.electorate is None

    def leave(self, agent: Agent) -> None:
        """It ends in order, whoever hears of it; not where it hosts the coordinator."""
        hosts = any(one.alive and one.host == agent.name for one in self.coordinators)
        if hosts or agent.leaves or agent.count is not None:
            return
        agent.leaves, agent.left, agent.current = True, agent.current, None
        if agent.stream is not None:
            agent.stream.up.append(Goodbye())

    def kill(self, agent: Agent) -> None:
        agent.alive = False
        agent.stream = None
        for coordinator in self.coordinators:
            if coordinator.host == agent.name:
                coordinator.alive = False

    def make_anew(self, dead: Agent) -> None:
        """Its pod is: another agent of its index comes, which knows nothing."""
        name = f"{dead.name}'"
        if not dead.alive and name not in self.agents:
            self.agents[name] = Agent(name, dead.index)
            if dead.index == 0:
                self.host(name, 0, None)

    def make_anew_and_ask(self, dead: Agent) -> None:
        """Make it anew once those who lived on have noticed the death; a new first host asks."""
        hosted = [one for one in self.coordinators if one.host == dead.name]
        if any(a.alive and a.stream and a.stream.coordinator in hosted for a in self._all()):
            return
        before = len(self.agents)
        self.make_anew(dead)
        if dead.index == 0 and len(self.agents) > before:
            made = self.agents[f"{dead.name}'"]
            made.hesitates = True
            self.dial(made, self.coordinators[-1])

    def ask_others(self, agent: Agent) -> None:
        """A new first host asks who hosts the coordinator, as `HostSearch` and `Follower` do; that
        it begins without an answer after a while is left out: storage decides between sides then.
        """
        others = [one for one in self._all() if one.alive and one is not agent]
        if not (agent.alive and agent.hesitates):
            return
        for other in others:
            if not self.reach(agent.name, other.name):
                return
            knows = other.voter.electorate is not None
            heard = _hears(other)
            if knows and not heard:
                return
            if other.voter.sworn >= TERMS_OF_A_HOST and (knows or heard):
                agent.voter = swear(agent.voter, other.voter.sworn)
                for own in self.coordinators:
                    if own.host == agent.name:
                        own.depose(other.voter.sworn)
                self.give_up(agent)
        agent.hesitates, agent.asked = False, True
        if agent.stream is not None and agent.current is None and not agent.leaves:
            agent.stream.up.append(Join(1, live=True))

    def _all(self) -> list[Agent]:
        return list(self.agents.values())

    def may_prove(self, known: Electorate | None, dead: Agent) -> bool:
        """Tell whether somebody with this electorate may count a dead agent out: not if that one
        went on without it. A proof comes within moments of the death, to those who heard of its
        host until then; whoever was cut off before must be told by the job's owner, who sees all.
        So is who has no vote."""
        theirs = dead.voter.electorate
        return known is not None and (theirs is None or not is_newer(theirs, known))

    def prove(self, agent: Agent, dead: Agent) -> None:
        if not dead.alive and self.may_prove(agent.voter.electorate, dead):
            agent.gone.add(dead.name)

    def prove_to_coordinator(self, coordinator: Coordinator, dead: Agent) -> None:
        if not dead.alive and self.may_prove(coordinator.state.electorate, dead):
            coordinator.feed(Gone(frozenset({dead.name})))

    # ---- what must hold

    def sides(self) -> list[Round]:
        """Rounds all of whose members are in them: they make steps, and may commit."""
        found: dict[tuple[int, int], Round] = {}
        for agent in self.agents.values():
            if agent.alive and agent.current is not None:
                found[agent.current.term, agent.current.round] = agent.current
        return [made for made in found.values() if all(self._is_in(m, made) for m in made.members)]

    def train(self) -> None:
        """Have each side make a step and commit it. A new side must go on from the newest: a member
        has it live, or they ask storage, as those do that are contested, or have nothing live."""
        for made in self.sides():
            members = [self.agents[member.agent] for member in made.members]
            if made != self.newest:
                live = [agent.trained for agent in members if agent.trained is not None]
                assert made.contested or not live or self.newest in live, (self.newest, made)
            self.newest = made
            for agent in members:
                if agent.trained != made and agent.stream is not None:
                    agent.stream.up.append(Progress(made.round, 1))
                agent.trained = made

    def _is_in(self, member: Member, made: Round) -> bool:
        agent = self.agents[member.agent]
        return agent.alive and agent.current == made

    def streams(self) -> list[Stream]:
        found = {id(s): s for c in self.coordinators for s in c.streams.values()}
        for agent in self.agents.values():
            if agent.stream is not None:
                found[id(agent.stream)] = agent.stream
        return list(found.values())


def _hears(agent: Agent) -> bool:
    """Tell whether it has a coordinator, as it answers who can reach it. That answers first once
    it has the Hello, and its end closes the stream."""
    stream = agent.stream
    if stream is None or not stream.coordinator.alive:
        return False
    return not any(isinstance(one, Hello) for one in stream.up)


def _round_of(agent: Agent) -> int:
    return agent.current.round if agent.current is not None else -1
