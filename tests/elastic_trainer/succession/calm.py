"""Runs agents and coordinators by themselves in a world that nothing disturbs any more: each
agent asks, stands, votes, hosts and dials as its `Follower` says."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from elastic_trainer.coordinator.model import Gone, Tick
from elastic_trainer.protocol.message import Electorate, Heartbeat, Member
from elastic_trainer.succession.agent_status import AgentStatus, Found
from elastic_trainer.succession.ballot import Ballot
from elastic_trainer.succession.candidacy import Count
from elastic_trainer.succession.electorate import TERMS_OF_A_HOST, missing, voters
from elastic_trainer.succession.follower import Follower

from tests.elastic_trainer.succession.world import Agent, Coordinator, World

TICK = 0.1
LIMIT = 1.0


def may_decide(world: World) -> bool:
    """Tell whether the living are more than half of those who elect, whichever round is the newest
    that one of them knows; or nobody who elects is left, but an agent that hosts by right."""
    living = {agent.name for agent in world.agents.values() if agent.alive}
    known = [one for name in living if (one := world.agents[name].voter.electorate) is not None]
    left = [one for one in known if voters(one).keys() & living]
    first = any(world.agents[name].index == 0 for name in living)
    return bool(left or first) and all(not missing(one, living, set()) for one in left)


class Calm:
    """Runs a world on, a tick at a time."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.now = 1000.0
        world.cut.clear()
        world.ballots.clear()
        world.votes.clear()
        for agent in self._living():
            if agent.hesitates:  # as long as `_hesitates` says from now on
                agent.hesitates, agent.stream = False, None
        self.followers = {agent.name: self._follower(agent) for agent in self._living()}

    def _living(self) -> list[Agent]:
        return [agent for agent in self.world.agents.values() if agent.alive]

    def _follower(self, agent: Agent) -> Follower:
        agent.count = None
        host = agent.stream.coordinator.host if agent.stream is not None else None
        return Follower(
            agent.name,
            LIMIT,
            first_host=agent.index == 0 and agent.voter.sworn < TERMS_OF_A_HOST,
            voter=agent.voter,
            host=self._member(host) if host is not None else None,
            address=f"{host}:1" if host is not None else "",
            heard_at=self.now,
            gone=frozenset(agent.gone),
        )

    def _member(self, name: str) -> Member:
        return Member(name, self.world.agents[name].index, name, 1)

    def _coordinator(self, name: str) -> Coordinator | None:
        """Return the one that an agent runs."""
        found = [one for one in self.world.coordinators if one.host == name and one.alive]
        return found[-1] if found else None

    # ---- one tick

    def tick(self) -> None:
        self.now += TICK
        for agent in self.random.sample(self._living(), len(self._living())):
            self._attend(agent)
        for coordinator in self.world.coordinators:
            if coordinator.alive:
                self._serve(coordinator)

    def _set(self, agent: Agent, follower: Follower) -> None:
        led = follower.led != self.followers[agent.name].led
        self.followers[agent.name], agent.voter = follower, follower.voter
        own = self._coordinator(agent.name)
        if led and own is not None and not follower.address.startswith(f"{agent.name}:"):
            own.alive = False
        if led:
            agent.stream = None

    def _attend(self, agent: Agent) -> None:
        self._restart(agent)
        if self._is_connected(agent):
            self._listen(agent)
        else:
            agent.stream = None
            self._find_coordinator(agent)

    def _is_connected(self, agent: Agent) -> bool:
        stream = agent.stream
        if stream is None or not stream.coordinator.alive:
            return False
        return stream.coordinator.streams.get(agent.name) is stream

    def _find_coordinator(self, agent: Agent) -> None:
        name = agent.name
        follower = self.followers[name]
        asked = follower.asks
        found = self._look(agent, asked.agent) if asked is not None else None
        if found is not None and found.status is not None:
            follower = follower.hears_of(found.status, self.now)
        if follower.led == self.followers[name].led:
            follower = follower.judges(found, self.now)
        self._set(agent, follower)
        for other in self._living():
            if other is not agent:
                status = self._status(other)
                self._set(agent, self.followers[name].hears_of(status, self.now))
        self._begin_anew_if_alone(agent)
        follower = self.followers[name].takes_turn(self.now, self.random.uniform(0, 0.1))
        self._set(agent, follower)
        if follower.may_stand(self.now):
            self._stand(agent)
        first = next((one.name for one in self._living() if one.index == 0), "")
        host = self.followers[name].address.rpartition(":")[0] or first
        coordinator = self._coordinator(host)
        if coordinator is not None and not self._hesitates(agent):
            self.world.dial(agent, coordinator)
            self.followers[name] = replace(self.followers[name], voter=agent.voter)

    def _hesitates(self, agent: Agent) -> bool:
        """Tell whether a new first host waits for others, who may be training or elect another."""
        new = self.followers[agent.name].hosts_by_right and agent.voter.electorate is None
        return new and self._others_may_train(agent)

    def _others_may_train(self, agent: Agent) -> bool:
        """Tell what agents answer: some know of a round, and have lost its coordinator."""
        others = (one for one in self._living() if one is not agent)
        statuses = [self._status(one) for one in others]
        return any(one.round and not one.heard for one in statuses)

    def _others_know(self, agent: Agent) -> bool:
        others = (one for one in self._living() if one is not agent)
        return any(one.voter.electorate is not None for one in others)

    def _begin_anew_if_alone(self, agent: Agent) -> None:
        follower = self.followers[agent.name]
        if not (follower.has_no_vote and follower.host_lost):
            return
        if (known := follower.voter.electorate) is not None:
            self._count(agent, follower.ballot(f"{agent.name}:1"), known)
        follower = self.followers[agent.name]
        if not follower.may_begin_anew(self._others_know(agent), self.now):
            return
        self._set(agent, follower.begins_anew(agent.index == 0, self.now))
        for one in self.world.coordinators:
            if one.host == agent.name:
                one.deposed = 0

    def _restart(self, agent: Agent) -> None:
        """The first host's agent runs the first coordinator until it was deposed."""
        follower, address = self.followers[agent.name], f"{agent.name}:1"
        if self._coordinator(agent.name) is not None:
            return
        own = [one for one in self.world.coordinators if one.host == agent.name]
        deposed = max((one.deposed for one in own), default=0)
        if follower.first_host and deposed:
            self._set(agent, replace(follower, first_host=False))
        elif follower.hosts_by_right:
            self.world.host(agent.name, max((one.term for one in own), default=-1) + 1, None)
        elif follower.address == address:
            self._set(agent, follower.hosts_no_more(address, deposed))

    def _listen(self, agent: Agent) -> None:
        stream = agent.stream
        assert stream is not None
        for _ in range(20):
            self.world.deliver_up(stream)
            self.world.deliver_down(stream)
        coordinator = stream.coordinator
        beat = Heartbeat(coordinator.term, self._member(coordinator.host))
        follower = replace(self.followers[agent.name], voter=agent.voter).hears(self.now)
        self._set(agent, follower.hears_beat(beat, f"{coordinator.host}:1"))

    def _serve(self, coordinator: Coordinator) -> None:
        for name, stream in list(coordinator.streams.items()):
            agent = self.world.agents[name]
            if not agent.alive or agent.stream is not stream:
                self.world.lose(coordinator, name)
        coordinator.now += TICK
        coordinator.feed(Tick(dict.fromkeys(coordinator.state.agents, coordinator.now)))
        for member in coordinator.state.missing:
            found = self.world.agents[member.agent]
            if found.alive and found.voter.sworn > coordinator.term:
                coordinator.depose(found.voter.sworn)
            elif not found.alive and self._may_be_told(coordinator.state.electorate, found):
                coordinator.feed(Gone(frozenset({member.agent})))

    def _may_be_told(self, known: Electorate | None, dead: Agent) -> bool:
        """Tell whether a coordinator learns that an elector has died. Of the last one it may:
        nobody is left whom that one went on with."""
        living = {agent.name for agent in self._living()}
        nobody_left = known is not None and not voters(known).keys() & living
        return nobody_left or self.world.may_prove(known, dead)

    # ---- what agents ask one another

    def _status(self, agent: Agent) -> AgentStatus:
        hosts = self._coordinator(agent.name) is not None
        return self.followers[agent.name].status("", hosts=hosts, heard=agent.stream is not None)

    def _look(self, agent: Agent, other: str) -> Found:
        found = self.world.agents[other]
        if found.alive:
            return Found(self._status(found))
        return Found(gone=self._may_prove(agent, found))

    def _may_prove(self, agent: Agent, dead: Agent) -> bool:
        no_vote = self.followers[agent.name].has_no_vote
        return no_vote or self.world.may_prove(agent.voter.electorate, dead)

    def _stand(self, agent: Agent) -> None:
        follower = self.followers[agent.name]
        known = follower.voter.electorate
        assert known is not None
        asked = self._count(agent, follower.ballot(f"{agent.name}:1"), known)
        if not asked.won:
            self._set(agent, self.followers[agent.name].asks_again(self.now))
            return
        follower = self.followers[agent.name].stands(asked)
        follower = follower.waits(self.now, self.random.uniform(0, 0.2))
        self._set(agent, follower)
        term = follower.voter.sworn
        ballot = replace(follower.ballot(f"{agent.name}:1"), term=term, trial=False)
        counted = self._count(agent, ballot, known)
        if self.followers[agent.name].has_won(term, counted):
            self.world.host(agent.name, term, counted)
            self._set(agent, self.followers[agent.name].hosts(f"{agent.name}:1"))

    def _count(self, agent: Agent, ballot: Ballot, known: Electorate) -> Count:
        follower = self.followers[agent.name]
        count = Count(agent.name, known, set(follower.gone))
        for name in voters(known).keys() - {agent.name, *follower.silent}:
            voter = self.world.agents[name]
            if voter.alive:
                after, answer = self.followers[name].votes(ballot, False, self.now)
                self._set(voter, after)
                count.votes[name] = answer
            elif self._may_prove(agent, voter):
                count.gone.add(name)
        self._set(agent, self.followers[agent.name].learns(count))
        return count
