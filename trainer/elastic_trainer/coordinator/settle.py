"""What the state calls for, whatever event led to it: form, adopt, fence, end a round.

A `Draft` is one step's working copy. `settle` looks only at the state and the time, so a missed
or repeated event can't leave a round stuck.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_trainer.coordinator.model import (
    LONG_STEP,
    Agent,
    Effect,
    Fence,
    Phase,
    RoundRecord,
    Send,
    State,
)
from elastic_trainer.protocol.message import (
    STEPS_PATIENCE,
    Completed,
    CoordinatorMessage,
    Dismissed,
    FenceAsk,
    FenceCancel,
    FenceStop,
    Member,
    Round,
    RoundOver,
    Standby,
)

KEPT_ROUNDS = 200


class Draft:
    """A state being changed at a time, and the effects so far."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []

    # ---- small changes

    def put(self, agent: Agent) -> None:
        self.state = replace(self.state, agents={**self.state.agents, agent.agent: agent})

    def remove(self, name: str) -> None:
        agents = {k: v for k, v in self.state.agents.items() if k != name}
        self.state = replace(self.state, agents=agents)

    def send(self, name: str, message: CoordinatorMessage) -> None:
        self.effects.append(Send(name, message))

    # ---- round changes

    def adopt(self, running: Round) -> None:
        """After our restart: take over the round that agents say is running."""
        state, now = self.state, self.now
        record = RoundRecord(running.round, len(running.members), now, running.reason)
        self.state = replace(
            state,
            phase=Phase.ADOPTING,
            round=running,
            round_since=now,
            fence=None,
            restart_deadline=now + state.settings.adopt_grace,
            rounds=(*state.rounds, record),
        )

    def begin_completing(self) -> None:
        """A member's workers have left the training loop, or ended: no step will be made, so no
        fence can be reached, and nobody is let in."""
        if self.state.phase not in (Phase.RUNNING, Phase.FENCING):
            return
        if self.state.fence is not None:
            for agent in self._attached():
                self.send(agent.agent, FenceCancel(self.state.fence.fence))
        self.state = replace(self.state, phase=Phase.COMPLETING, fence=None)

    def fail(self, verdict: str) -> None:
        """No further round: all are to end with an error."""
        members = self.state.round.members if self.state.round is not None else ()
        rejected = frozenset(self.state.agents) | {member.agent for member in members}
        self.end_round(verdict)
        for agent in self.state.agents.values():
            self.put(replace(agent, joined_at=None))
            self.send(agent.agent, Dismissed(verdict, failed=True))
        self.state = replace(
            self.state,
            phase=Phase.FAILED,
            reason=verdict,
            verdict=verdict,
            rejected_agents=rejected,
        )

    def enough_without(self, node: str) -> bool:
        """Whether the agents of other nodes, excluded ones apart, are enough for a round."""
        state = self.state
        left = sum(a.node != node and a.node not in state.excluded for a in state.agents.values())
        return state.settings.size(left) > 0

    def exclude(self, node: str, reason: str) -> None:
        """No further round has agents of `node`, nor has this one."""
        self.state = replace(self.state, excluded={**self.state.excluded, node: reason})
        concerned = [a for a in self.state.agents.values() if a.node == node]
        if any(agent.attached for agent in concerned):
            self.end_round(f"node {node} was excluded")
        names = {agent.agent for agent in concerned}
        self.state = replace(self.state, expected=self.state.expected - names)

    def begin_attempt(self) -> None:
        """After a verdict: containers were started again, whose owner wants another attempt."""
        state = self.state
        self.state = replace(
            state,
            phase=Phase.FORMING,
            verdict="",
            rejected_agents=frozenset(),
            excluded={},
            attempt_since=state.last_round,
            enough_since=None,
            reason="a new attempt",
        )

    def end_round(self, reason: str, failed: str | None = None) -> None:
        """Members' workers restart or wait in process; leavers are let go.

        Args:
            failed: the agent whose workers are gone.
        """
        state = self.state
        if state.round is None or state.phase in (
            Phase.FORMING,
            Phase.RESTARTING,
            Phase.FINISHED,
        ):
            return
        attached = self._attached()
        # Those who linked know; a round that broke before anybody did goes by the one before.
        linked = [agent.recovers for agent in attached if agent.linked]
        recovering = all(linked) if linked else state.recovering
        if any(agent.finished for agent in attached):
            recovering = False  # out of the loop, they can only be started again: all together
        stayers = set()
        for agent in attached:
            if agent.leaving:
                self.send(agent.agent, Dismissed(reason))
            else:
                self.send(agent.agent, RoundOver(state.round.round, reason))
                stayers.add(agent.agent)
            self.put(
                replace(
                    agent,
                    attached=False,
                    linked=False,
                    finished=False,
                    told_fence=0,
                    told_stop=-1,
                    fenced=False,
                    joined_at=None,
                    live=False,
                    standby=False,
                )
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
            succeeded=frozenset(),
            expected=frozenset(stayers),
            recovering=recovering,
            restart_deadline=self.now
            + max(state.settings.restart_deadline, STEPS_PATIENCE * state.step_seconds),
            reason=reason,
            enough_since=None,
            rounds=rounds,
        )

    # ---- what the state calls for

    def settle(self) -> None:
        phase = self.state.phase
        if phase is Phase.ADOPTING:
            self._settle_adopting()
        if self.state.phase is Phase.RUNNING:
            self._settle_running()
        if self.state.phase is Phase.FENCING:
            self._settle_fencing()
        if self.state.phase is Phase.COMPLETING:
            self._settle_completing()
        if self.state.phase in (Phase.FORMING, Phase.RESTARTING):
            self._settle_forming()
        if self.state.phase is Phase.FINISHED:
            for agent in self.state.agents.values():
                if agent.joined_at is not None and not agent.standby:
                    self.put(replace(agent, joined_at=None))
                    self.send(agent.agent, Dismissed("training is complete"))

    def _settle_forming(self) -> None:
        self._stand_by()
        state, now = self.state, self.now
        waiting = self._ready()
        size = state.settings.size(len(waiting))
        if size == 0:  # rather those who were late than nobody
            waiting = self._waiting()
            size = state.settings.size(len(waiting))
        if state.phase is Phase.RESTARTING:
            late = [
                name
                for name in state.expected
                if (agent := state.agents.get(name)) is not None
                and (agent.joined_at is None or agent.standby)
                and not agent.leaving
            ]
            if late and now < state.restart_deadline:
                return
            if size == 0:
                self.state = replace(state, phase=Phase.FORMING, expected=frozenset())
                return
        elif size == 0:
            if state.enough_since is not None:
                self.state = replace(state, enough_since=None)
            return
        else:
            since = now if state.enough_since is None else state.enough_since
            self.state = state = replace(state, enough_since=since)
            everybody = size == state.settings.size(state.settings.max_nodes)
            # Just restarted, we may not have heard of the running round yet.
            wait = state.started if everybody else max(since, state.started)
            if now < wait + state.settings.grace:
                return
        self._form(waiting[:size])

    def _stand_by(self) -> None:
        """Where workers recover in process, newcomers start theirs while the others train on."""
        state = self.state
        if not self._live():
            return
        for agent in state.agents.values():
            ready = agent.joined_at is not None and agent.node not in state.excluded
            if ready and not (agent.live or agent.standby or agent.leaving):
                self.put(replace(agent, standby=True))
                self.send(agent.agent, Standby())

    def _live(self) -> bool:
        """Whether some worker waits or trains that goes from round to round in process."""
        agents = self.state.agents.values()
        if self.state.round is not None:
            attached = [agent for agent in agents if agent.attached]
            return bool(attached) and all(agent.linked and agent.recovers for agent in attached)
        return any(agent.live and agent.joined_at is not None for agent in agents)

    def _form(self, chosen: list[Agent]) -> None:
        state, now = self.state, self.now
        members = tuple(Member(a.agent, a.pod_index, a.address) for a in chosen)
        number = state.last_round + 1
        made = Round(number, members, chosen[0].address, chosen[0].store_port, state.reason)
        for agent in chosen:
            self.put(
                replace(
                    agent,
                    joined_at=None,
                    live=False,
                    standby=False,
                    attached=True,
                    linked=False,
                    finished=False,
                    held_step=-1,
                    recovers=agent.live,
                    pids=(),
                )
            )
            self.send(agent.agent, made)
        record = RoundRecord(number, len(members), now, state.reason)
        self.state = replace(
            self.state,
            phase=Phase.RUNNING,
            round=made,
            round_since=now,
            last_round=number,
            newcomers=frozenset(agent.agent for agent in chosen) - state.last_members,
            last_members=frozenset(agent.agent for agent in chosen),
            fence=None,
            expected=frozenset(),
            enough_since=None,
            samples=(),
            rounds=(*state.rounds, record)[-KEPT_ROUNDS:],
        )

    def _settle_adopting(self) -> None:
        state = self.state
        assert state.round is not None
        attached = self._attached()
        if len(attached) < len(state.round.members):
            if self.now >= state.restart_deadline:
                back = {agent.agent for agent in attached}
                gone = [str(m.pod_index) for m in state.round.members if m.agent not in back]
                self.end_round(f"worker {', '.join(gone)} lost with the coordinator")
            return
        self.state = replace(state, phase=Phase.RUNNING)
        if state.succeeded or any(agent.finished for agent in attached):
            self.begin_completing()
            return
        asked = max((agent.told_fence for agent in attached), default=0)
        if asked == 0:
            return
        stop = max(a.told_stop for a in attached if a.told_fence == asked)
        if stop < 0:
            for agent in attached:
                self.send(agent.agent, FenceCancel(asked))
            return
        # Some rank may have been told where to stop, or stand there: all must stop there too.
        fence = Fence(
            asked,
            "the fence before the coordinator's restart",
            self.now + state.settings.join_deadline,
            replies={agent.agent: -1 for agent in attached},
            stop=stop,
            fenced=frozenset(agent.agent for agent in attached if agent.fenced),
        )
        self.state = replace(self.state, phase=Phase.FENCING, fence=fence)
        self._tell_stop(fence)

    def _settle_running(self) -> None:
        self._stand_by()
        state, now, settings = self.state, self.now, self.state.settings
        attached = self._attached()
        if self._end_if_places_stay_empty(attached):
            return
        leavers = [agent for agent in attached if agent.leaving]
        joiners = self._due_joiners(len(attached) - len(leavers))
        if not leavers and not joiners:
            return
        reason = _change(leavers, joiners)
        if all(agent.linked for agent in attached):
            number = state.last_fence + 1
            at_once = bool(leavers) and state.step_seconds > LONG_STEP
            fence = Fence(number, reason, now + settings.join_deadline, at_once)
            self.state = replace(state, phase=Phase.FENCING, fence=fence, last_fence=number)
            assert state.round is not None
            for agent in attached:
                self.send(agent.agent, FenceAsk(number, state.round.round, at_once))
            return
        impatient = any(now >= (a.leaving_since or 0) + settings.unlinked_leave for a in leavers)
        if impatient or self._may_restart_unlinked(len(attached), joiners):
            self.end_round(reason)

    def _end_if_places_stay_empty(self, attached: list[Agent]) -> bool:
        """Ends a round of waiting workers that some do not enter, where no state moves any more."""
        state, now, settings = self.state, self.now, self.state.settings
        away = [agent for agent in attached if not agent.linked]
        if not away or not all(agent.recovers for agent in attached):
            return False
        moved = max(agent.moved_at for agent in attached)
        if now < max(state.round_since, moved) + settings.place_deadline:
            return False
        who = ", ".join(str(agent.pod_index) for agent in away)
        newcomers = [agent.agent for agent in away if agent.agent in state.newcomers]
        self.end_round(f"worker {who} did not take its place in time")
        for name in newcomers:
            agent = self.state.agents[name]
            wait = min(settings.retry_late * 2**agent.late, settings.retry_late_limit)
            self.put(replace(agent, late=agent.late + 1, retry_at=now + wait))
        return True

    def _may_restart_unlinked(self, members: int, joiners: list[Agent]) -> bool:
        """Whether a round that has not linked is to be restarted for joiners.

        Its scripts may still be loading what they need, and begin anew each time; or they have no
        link, and never will. So joiners gather: each restart makes the world twice as large, or
        comes after a while without a further joiner.
        """
        settings, now = self.state.settings, self.now
        if not joiners or now < self.state.round_since + settings.unlinked_join:
            return False
        since = [agent.joined_at or 0.0 for agent in joiners]
        quiet = now >= max(since) + settings.unlinked_quiet
        waited = now >= min(since) + settings.unlinked_limit
        everybody = settings.size(members + len(joiners)) == settings.size(settings.max_nodes)
        return quiet or waited or everybody or len(joiners) >= members

    def _due_joiners(self, staying: int) -> list[Agent]:
        """Those who would make the world larger, if it is time to let them in."""
        settings, now = self.state.settings, self.now
        waiting = self._ready()
        if settings.size(staying + len(waiting)) <= staying:
            return []
        since = [agent.joined_at or 0.0 for agent in waiting]
        if self._live():
            return waiting  # nobody restarts: a change costs less than waiting for others
        due = min(max(since) + settings.batching, min(since) + settings.batching_limit)
        return waiting if now >= due else []

    def _settle_fencing(self) -> None:
        state, now = self.state, self.now
        fence = state.fence
        assert fence is not None
        attached = self._attached()
        if any(agent.leaving for agent in attached):
            limit = min(agent.leave_by for agent in attached if agent.leaving)
            if fence.deadline > limit:
                fence = replace(fence, deadline=max(limit, now))
        names = {agent.agent for agent in attached}
        if fence.stop is None and names <= set(fence.replies):
            # Nobody runs past the end of the step in progress when asked, or of the one after it.
            newest = max(fence.replies[name] for name in names)
            further = 0 if fence.at_once and newest >= 0 else 1
            fence = replace(fence, stop=newest + further)
            self._tell_stop(fence)
        self.state = replace(state, fence=fence)
        if names <= fence.fenced:
            self.end_round(self._fence_reason(fence))
        elif now >= fence.deadline:
            self.end_round(f"{fence.reason}; the fence was not reached in time")

    def _settle_completing(self) -> None:
        """All again where one fails: their scripts' tails may have collectives."""
        state, now = self.state, self.now
        assert state.round is not None
        if all(member.agent in state.succeeded for member in state.round.members):
            self.state = replace(state, phase=Phase.FINISHED)
            for agent in self._attached():
                self.send(agent.agent, Completed())
            return
        for agent in self._attached():
            if not agent.leaving:
                continue
            if agent.agent in state.succeeded:
                self.put(replace(agent, attached=False))
                self.send(agent.agent, Dismissed("leaving; its workers have ended"))
            elif now >= agent.leave_by:
                self.end_round(f"worker {agent.pod_index} left before its script's end")
                return

    def _fence_reason(self, fence: Fence) -> str:
        """Why the round changes, as of its end: others may have come since the fence was begun."""
        leavers = [agent for agent in self._attached() if agent.leaving]
        return _change(leavers, self._ready()) or fence.reason

    def _tell_stop(self, fence: Fence) -> None:
        assert fence.stop is not None and self.state.round is not None
        attached = self._attached()
        alone = all(agent.leaving for agent in attached)
        number = self.state.round.round
        for agent in attached:
            stop = FenceStop(fence.fence, number, fence.stop, agent.leaving, commit=alone)
            self.send(agent.agent, stop)

    # ---- views

    def _attached(self) -> list[Agent]:
        agents = [agent for agent in self.state.agents.values() if agent.attached]
        return sorted(agents, key=lambda agent: agent.order)

    def _waiting(self) -> list[Agent]:
        agents = [
            agent
            for agent in self.state.agents.values()
            if agent.joined_at is not None
            and not (agent.leaving or agent.standby)
            and agent.node not in self.state.excluded
        ]
        return sorted(agents, key=lambda agent: agent.order)

    def _ready(self) -> list[Agent]:
        """Those who wait, but for newcomers that were late a moment ago."""
        return [agent for agent in self._waiting() if self.now >= agent.retry_at]


def _change(leavers: list[Agent], joiners: list[Agent]) -> str:
    parts = []
    for verb, agents in (("left", leavers), ("joined", joiners)):
        if agents:
            who = ", ".join(str(agent.pod_index) for agent in agents)
            parts.append(f"worker {who} {verb}")
    return "; ".join(parts)
