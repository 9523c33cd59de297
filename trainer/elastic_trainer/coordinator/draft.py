"""One step's working copy of the coordinator's state, and what it decides to tell whom.

Changes of rounds, and views of the agents; what calls for them is settle.py's.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.doubts import Doubts
from elastic_trainer.coordinator.leavers import holds_part, may_wait
from elastic_trainer.coordinator.model import Effect, Phase, RoundRecord, Send, State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import (
    STEPS_PATIENCE,
    CoordinatorMessage,
    Dismissed,
    FenceCancel,
    Round,
    RoundOver,
)
from elastic_trainer.protocol.pace import beat_seconds, silence


class Draft:
    """A state being changed at a time, and the effects so far."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    # ---- small changes

    def put(self, agent: Agent) -> None:
        self.state = replace(self.state, agents=self.state.agents.with_agent(agent))

    def remove(self, name: str) -> None:
        self.state = replace(self.state, agents=self.state.agents.without(name))

    def put_all(self, changed: Iterable[Agent]) -> None:
        agents = self.state.agents
        for agent in changed:
            agents = agents.with_agent(agent)
        self.state = replace(self.state, agents=agents)

    def expect(self, names: frozenset[str]) -> None:
        """From now on the next round waits for these."""
        before = self.state.expected
        self.state = replace(self.state, expected=names)
        self.put_all(
            replace(agent, expected=name in names)
            for name in before ^ names
            if (agent := self.state.agents.get(name)) is not None
        )

    def send(self, name: str, message: CoordinatorMessage) -> None:
        self.effects.append(Send(name, message))

    # ---- round changes

    def adopt(self, running: Round) -> None:
        """After our restart: take over the round that agents say is running, and the nodes that it
        was made without. Their time begins anew, as nobody tells how much of it was over."""
        state, now = self.state, self.now
        record = RoundRecord(running.round, len(running.members), now, running.reason, adopted=True)
        excluded = {one.node: one.reason for one in running.excluded}
        self.state = replace(
            state,
            phase=Phase.ADOPTING,
            round=running,
            round_since=now,
            fence=None,
            doubts=Doubts(),
            watch=state.watch.begun(now),
            rounds=(*state.rounds, record),
            excluded={**excluded, **state.excluded},
            excluded_at={**dict.fromkeys(excluded, now), **state.excluded_at},
        )
        self.await_members()

    def await_members(self) -> None:
        """Further members of the round may still be on their way to us, some of whom only notice by
        its silence that the coordinator before us is gone."""
        assert self.state.round is not None
        beat = beat_seconds(len(self.state.round.members))
        deadline = self.now + silence(self.state.settings.adopt_grace, beat)
        self.state = replace(self.state, restart_deadline=deadline)

    def begin_completing(self) -> None:
        """A member's workers have left the training loop, or ended: no step will be made, so no
        fence can be reached, and nobody is let in."""
        if self.state.phase not in (Phase.RUNNING, Phase.FENCING):
            return
        if self.state.fence is not None:
            cancel = FenceCancel(self.state.fence.fence)
            for agent in self.attached():
                self.send(agent.agent, cancel)
        self.state = replace(self.state, phase=Phase.COMPLETING, fence=None)

    def fail(self, reason: str) -> None:
        """No further round: all are to end with an error."""
        members = self.state.round.members if self.state.round is not None else ()
        rejected = frozenset(self.state.agents) | {member.agent for member in members}
        self.end_round(reason, last=True)
        dismissed = Dismissed(reason, failed=True)
        for agent in self.state.agents.values():
            self.send(agent.agent, dismissed)
        everybody = self.state.agents.values()
        self.put_all(replace(agent, joined_at=None, gives_state=False) for agent in everybody)
        self.state = replace(
            self.state,
            phase=Phase.FAILED,
            reason=reason,
            lost=(),
            failure_reason=reason,
            rejected_agents=rejected,
        )

    def enough_without(self, node: str) -> bool:
        """Return whether the agents of other nodes, excluded ones apart, are enough for a round."""
        state = self.state
        without = sum(len(state.agents.on(one)) for one in {node, *state.excluded})
        return state.settings.size(len(state.agents) - without) > 0

    def exclude(self, node: str, reason: str) -> None:
        """No further round has agents of `node`, nor has this one."""
        excluded = {**self.state.excluded, node: reason}
        since = {**self.state.excluded_at, node: self.now}
        self.state = replace(self.state, excluded=excluded, excluded_at=since)
        concerned = self.state.agents.on(node)
        if any(agent.attached for agent in concerned):
            self.end_round(f"node {node} was excluded")
        names = {agent.agent for agent in concerned}
        self.expect(self.state.expected - names)

    def begin_attempt(self) -> None:
        """Begin another attempt: after the job failed, containers were started again."""
        state = self.state
        self.state = replace(
            state,
            phase=Phase.FORMING,
            failure_reason="",
            rejected_agents=frozenset(),
            excluded={},
            excluded_at={},
            short_since=None,
            watch=state.watch.anew(),
            attempt_since=state.last_round,
            enough_since=None,
            reason="a new attempt",
            lost=(),
        )

    def let_go(self, agent: Agent, reason: str) -> None:
        """A leaver of no round goes."""
        self.put(replace(agent, joined_at=None, gives_state=False))
        self.send(agent.agent, Dismissed(reason))

    def let_givers_go(self) -> None:
        """A round has begun, or goes on: leavers that waited for one are not in it."""
        if self.state.agents.count(Trait.GIVES_STATE):
            for agent in [one for one in self.state.agents.values() if one.gives_state]:
                self.let_go(agent, "leaving; the round has no place for it")

    def end_round(self, reason: str, failed: str | None = None, *, last: bool = False) -> None:
        """Members' workers restart or wait in process; leavers are let go, but for those that give
        away in the next round what they alone have (leavers.py).

        Args:
            failed: the agent whose workers are gone.
            last: there is no next round.
        """
        state = self.state
        if state.round is None or state.phase in (
            Phase.FORMING,
            Phase.RESTARTING,
            Phase.FINISHED,
        ):
            return
        attached = self.attached()
        # Those who linked know; a round that broke before anybody did goes by the one before.
        linked = [agent.recovers for agent in attached if agent.linked]
        recovering = all(linked) if linked else state.recovering
        if any(agent.finished for agent in attached):
            recovering = False  # out of the loop, they can only be started again: all together
        there = state.fence.fenced if state.fence is not None else frozenset()  # all given away
        stayers = {agent.agent for agent in attached if not agent.leaving}
        givers = {
            agent.agent
            for agent in attached
            if recovering and not last and agent.agent != failed and agent.agent not in there
            if may_wait(state, agent, self.now, failed or "")
        }
        stayers |= givers
        # At the fence their parts went to those who have a place in the next round, if any have.
        gave = there - state.promised if there & state.promised else frozenset()
        rid = {one.agent for one in attached if one.agent in gave and holds_part(state, one)}
        dismissed, over = Dismissed(reason), RoundOver(state.round.round, reason)
        for agent in attached:
            self.send(agent.agent, over if agent.agent in stayers else dismissed)
        self.put_all(
            replace(
                agent,
                gives_state=agent.agent in givers,
                holds=agent.holds if recovering and agent.agent not in {failed, *rid} else 0,
                tables=() if agent.agent in rid else agent.tables,
                attached=False,
                linked=False,
                finished=False,
                told_fence=0,
                told_stop=-1,
                told_commit=False,
                fenced=False,
                joined_at=None,
                live=False,
                standby=False,
            )
            for agent in attached
        )
        if recovering and state.settings.size(len(stayers - {failed})):
            stayers.discard(failed or "")  # it comes back when its workers are ready
        rounds = state.rounds
        if rounds:
            ended = replace(rounds[-1], end=reason, end_time=self.now)
            rounds = (*rounds[:-1], ended)
        self.state = replace(
            self.state,
            phase=Phase.RESTARTING,
            round=None,
            fence=None,
            doubts=Doubts(),
            succeeded=frozenset(),
            recovering=recovering,
            restart_deadline=self.now
            + max(state.settings.restart_deadline, STEPS_PATIENCE * state.step_seconds),
            reason=reason,
            lost=(),
            others_lost=0,
            enough_since=None,
            rounds=rounds,
        )
        self.expect(frozenset(stayers))

    # ---- views

    def attached(self) -> list[Agent]:
        agents = [agent for agent in self.state.agents.values() if agent.attached]
        return sorted(agents, key=lambda agent: agent.order)

    def leaving(self) -> set[str]:
        return {agent.agent for agent in self.state.agents.values() if agent.leaving}

    def leavers(self) -> list[Agent]:
        """The round's members that leave."""
        agents = self.state.agents
        if not agents.count(Trait.LEAVING):
            return []
        found = [agent for agent in agents.values() if agent.attached and agent.leaving]
        return sorted(found, key=lambda agent: agent.order)

    def count_waiting(self, trait: Trait = Trait.WAITING) -> int:
        """Return how many wait whose nodes are not excluded; `trait`: of those with it."""
        agents = self.state.agents
        return agents.count(trait) - agents.count_on(self.state.excluded, trait)

    def count_ready(self) -> int:
        """Return how many wait, but for newcomers that were late a moment ago."""
        return self.count_waiting() - sum(
            agent.waiting and agent.node not in self.state.excluded and self.now < agent.retry_at
            for agent in self.state.agents.retrying()
        )

    def deciding_host(self) -> str:
        """Return the host for which just half of the electors are enough; empty: it needs more."""
        known, settings = self.state.electorate, self.state.settings
        return settings.host if known is not None and known.term == settings.term else ""

    def waiting(self) -> list[Agent]:
        agents = [
            agent
            for agent in self.state.agents.values()
            if agent.waiting and agent.node not in self.state.excluded
        ]
        return sorted(agents, key=lambda agent: agent.order)

    def ready(self) -> list[Agent]:
        """Those who wait, but for newcomers that were late a moment ago."""
        return [agent for agent in self.waiting() if self.now >= agent.retry_at]
