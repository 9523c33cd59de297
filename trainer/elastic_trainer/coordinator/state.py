"""The coordinator's decisions: `step(state, event, now) -> (state, effects)`, pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.bookkeeping import booked
from elastic_trainer.coordinator.divergence_check import hear_digests
from elastic_trainer.coordinator.doubt_check import hear_doubt, hear_standing
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.failure_policy import Fail, decide
from elastic_trainer.coordinator.feeders import tell_newcomers
from elastic_trainer.coordinator.figures import hear_figures
from elastic_trainer.coordinator.leavers import waits_for_round
from elastic_trainer.coordinator.load import hear_load
from elastic_trainer.coordinator.losses import count_out, lose
from elastic_trainer.coordinator.model import (
    Checking,
    Drop,
    Effect,
    Event,
    FaultyNodes,
    Gone,
    Lost,
    NewRange,
    Phase,
    Received,
    State,
)
from elastic_trainer.coordinator.progress import hear_progress, reached
from elastic_trainer.coordinator.recheck import checked, suspect
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.settle import settle
from elastic_trainer.coordinator.straggler_check import look_for_stragglers, told
from elastic_trainer.coordinator.tables import hear_tables
from elastic_trainer.failures.record import bounded, with_failure
from elastic_trainer.protocol.message import (
    Committed,
    Completed,
    Digested,
    Dismissed,
    Doubted,
    Electorate,
    Failed,
    Fenced,
    FenceReply,
    Finished,
    Goodbye,
    Heartbeat,
    Hello,
    Inspected,
    Join,
    Leave,
    Linked,
    Load,
    NewestCommit,
    Progress,
    Reported,
    Round,
    RoundOver,
    Standing,
    Stopped,
    Tables,
    Taken,
    Transferring,
    WorkersFailed,
    WorkersSucceeded,
    newest_commits,
)
from elastic_trainer.protocol.pace import silence
from elastic_trainer.succession.electorate import is_contested, is_newer, missing, settled, too_few

TICK_LAG = 0.3
"""A pause of our own (seconds) that isn't held against the agents, whose messages wait unread."""


def step(state: State, event: Event, now: float) -> tuple[State, list[Effect]]:
    """Return the state after an event, and whom to tell what; transitions.py has the phases.

    A new range lets waiting agents in where it leaves room for them. It never ends a round: those
    beyond a lower max train on until they leave or the round ends for another reason, and so does
    a round that is smaller than a higher min.

    Raises:
        ValueError: a NewRange allows no round at all.
    """
    if isinstance(event, Received) and isinstance(event.message, Hello):
        known = state.agents.get(event.message.agent)
        if known is not None and known.attached:  # its round would wait for it for good
            state, effects = step(state, Lost(known.agent, "it connected anew"), now)
            state, more = step(state, event, now)
            return state, [*effects, *more]
    draft = Draft(state, now)
    if isinstance(event, Received):
        _receive(draft, event)
    elif isinstance(event, Lost):
        lose(draft, event.agent, event.reason)
    elif isinstance(event, NewRange):
        low, high = event.min_nodes, event.max_nodes
        settings = replace(state.settings, min_nodes=low, max_nodes=high)
        draft.state = replace(state, settings=settings)
    elif isinstance(event, FaultyNodes):
        for node, reason in event.nodes.items():
            if draft.enough_without(node):  # rather with a broken node than not at all
                draft.exclude(node, reason)
        draft.state = checked(draft.state)
    elif isinstance(event, Checking):
        draft.state = replace(state, checking=event.under_way)
    elif isinstance(event, Gone):
        draft.state = replace(state, gone=state.gone | event.agents)
    else:
        _tick(draft, event.last_seen)
        look_for_stragglers(draft)
    if not (isinstance(event, Received) and isinstance(event.message, _IDLE)):
        settle(draft)
    return booked(state, draft.state, event, now), draft.effects


def _tick(draft: Draft, last_seen: Mapping[str, float]) -> None:
    state, now = draft.state, draft.now
    lag = 0.0 if state.last_tick is None else now - state.last_tick
    allowance = lag if lag > TICK_LAG else 0.0
    watch = replace(state.watch, since=state.watch.since + allowance) if allowance else state.watch
    pace = state.pace.at(state.fewest_agents, now)
    draft.state = replace(state, last_tick=now, watch=watch, pace=pace)
    if allowance:
        last_seen = {
            name: max(last_seen.get(name, 0.0), min(now, agent.last_seen + allowance))
            for name, agent in state.agents.items()
        }
    draft.put_all(
        replace(agent, last_seen=seen)
        for name, seen in last_seen.items()
        if (agent := state.agents.get(name)) is not None and seen > agent.last_seen
    )
    limit = silence(state.settings.lost_after, pace.slowest)
    if now - state.heard_since <= limit:
        return
    agents = draft.state.agents.values()
    heard_since = min((agent.last_seen for agent in agents), default=now)
    draft.state = replace(draft.state, heard_since=heard_since)
    for agent in [one for one in agents if now - one.last_seen > limit]:
        draft.effects.append(Drop(agent.agent))
        lose(draft, agent.agent, f"silent for {now - agent.last_seen:.1f} s")


def _receive(draft: Draft, event: Received) -> None:
    message = event.message
    if isinstance(message, Hello):
        _hello(draft, message)
        return
    agent = draft.state.agents.get(event.agent)
    if agent is None:
        return  # declared lost; its stream is being closed and it will say hello
    agent = replace(
        agent,
        last_seen=draft.now,
        reached=reached(agent, message, draft.now),
        worked=told(message) or agent.worked,
    )
    draft.put(agent)
    handler = _HANDLERS.get(type(message))
    if handler is not None:
        handler(draft, agent, message)


def _hello(draft: Draft, hello: Hello) -> None:
    state, now, pod_index = draft.state, draft.now, hello.pod_index
    if pod_index < 0:
        known = hello.round.members if hello.round else ()
        mine = next((m.pod_index for m in known if m.agent == hello.agent), None)
        taken = {agent.pod_index for agent in state.agents.values()}
        pod_index = (
            mine if mine is not None else next(i for i in range(len(taken) + 1) if i not in taken)
        )
    agent = Agent(
        hello.agent,
        pod_index,
        hello.address,
        now,
        hello.node or f"worker {pod_index}",
        leaving_since=now if hello.leaving else None,
        leave_by=_leave_by(state, hello.grace_seconds, now) if hello.leaving else 0.0,
        linked=hello.linked,
        processes=hello.processes,
        recovers=hello.recovers,
        pids=hello.pids,
        feed_port=hello.feed_port,
        expected=hello.agent in state.expected,
        told_fence=hello.fence,
        told_stop=hello.stop_step,
        told_commit=hello.stop_commits,
        fenced=hello.fenced,
        holds=hello.last_round if hello.holds else 0,
        sharded=hello.sharded,
        port=hello.port,
        taken=_taken_in(state.settings.term, hello.electorate),
    )
    running = hello.round
    told = hello.electorate
    if told is not None and is_newer(told, state.electorate):
        # Of a round that others made, a step is not known of.
        trained = state.trained if told.term == state.settings.term else frozenset()
        state = replace(state, electorate=told, trained=trained)
    before = state.last_round
    draft.state = state = replace(
        state,
        last_round=max(state.last_round, hello.last_round, running.round if running else 0),
        last_fence=max(state.last_fence, hello.fence),
        committed_step=max(state.committed_step, hello.committed_step),
        commits=newest_commits((*state.commits, *hello.commits)),
        last_run=max(state.last_run, hello.last_run),
    )
    if running is not None:
        if state.phase is Phase.FORMING and state.round is None and running.round >= before:
            draft.adopt(running)
        elif (
            state.phase is Phase.ADOPTING
            and state.round is not None
            and _age(state.round) < _age(running)
        ):
            draft.end_round("a newer round was found")
            draft.adopt(running)
        current = _is_current(draft.state, running)
        if current and draft.state.phase is Phase.ADOPTING:
            agent = replace(agent, attached=True, finished=hello.finished)
            draft.await_members()
            if hello.succeeded:
                draft.state = _with_success(draft.state, hello.agent)
            if hello.step > draft.state.step:
                draft.state = replace(draft.state, step=hello.step)
        elif current and hello.agent in draft.state.succeeded:  # its stream broke meanwhile
            agent = replace(agent, attached=True, finished=True)
        else:
            draft.send(hello.agent, RoundOver(running.round, "the coordinator moved on"))
            agent = replace(
                agent, linked=False, told_fence=0, told_stop=-1, told_commit=False, fenced=False
            )
    if draft.state.phase is Phase.ADOPTING and draft.state.round is not None:
        holder = draft.state.round.member_at(pod_index)
        if holder is not None and holder.agent != hello.agent:
            draft.end_round(f"worker {pod_index} was replaced")
    if agent.leaving and not agent.attached:
        agent = replace(agent, gives_state=waits_for_round(draft.state, agent, now))
    draft.put(agent)
    ours = draft.state.electorate
    if ours is not None and agent.taken == ours.round and is_newer(ours, told):
        draft.send(hello.agent, ours)
    _settle_electorate(draft)
    if draft.state.phase is Phase.FINISHED:
        draft.send(hello.agent, Completed())


def _taken_in(term: int, known: Electorate | None) -> int:
    return known.round if known is not None and known.term == term else 0


def _is_current(state: State, running: Round) -> bool:
    return state.round is not None and _age(state.round) == _age(running)


def _age(made: Round) -> tuple[int, int]:
    """Order rounds. Two have one number where a coordinator made a round that did not come to all,
    and was lost, and the next one went on with those who had never heard of it."""
    return made.term, made.round


def _join(draft: Draft, agent: Agent, message: Join) -> None:
    state = draft.state
    if state.phase is Phase.FINISHED:
        draft.send(agent.agent, Completed())
        return
    if state.phase is Phase.FAILED:
        if agent.agent in state.rejected_agents:
            draft.send(agent.agent, Dismissed(state.failure_reason, failed=True))
            return
        draft.begin_attempt()
        state = draft.state
    member = state.round is not None and state.round.rank_of(agent.agent) is not None
    if member and agent.attached and 0 < message.round < _round_number(state):
        return  # by what it said at the fence it has a place, of which it hears just now
    if member and (agent.attached or state.phase is Phase.ADOPTING):
        draft.end_round(f"workers of worker {agent.pod_index} failed", failed=agent.agent)
    went, agent = agent.attached, draft.state.agents[agent.agent]
    agent = replace(
        agent,
        joined_at=draft.now,
        store_port=message.store_port,
        live=message.live,
        standby=False,
        holds=agent.holds if message.live else 0,
        parts=message.parts,
    )
    if agent.leaving:
        if went or not waits_for_round(draft.state, agent, draft.now):
            draft.let_go(agent, "leaving")
            return
        agent = replace(agent, gives_state=True)
    draft.put(agent)


def _linked(draft: Draft, agent: Agent, message: Linked) -> None:
    recovers, pids, port = message.recovers, message.pids, message.feed_port
    # They have begun a run once they came to their round's state, though it be over by now.
    came = message.round if message.last_run else 0
    holds = max(agent.holds, came) if recovers else 0
    draft.put(agent := replace(agent, holds=holds, sharded=message.sharded or agent.sharded))
    if agent.attached and _round_number(draft.state) == message.round:
        draft.put(replace(agent, linked=True, recovers=recovers, pids=pids, late=0, feed_port=port))
        last_run = max(draft.state.last_run, message.last_run)
        draft.state = replace(draft.state, last_run=last_run)
        tell_newcomers(draft)
        if draft.state.watch.step < 0:
            draft.state = replace(draft.state, watch=draft.state.watch.moved(draft.now))


def _transferring(draft: Draft, agent: Agent, message: Transferring) -> None:
    if agent.attached and _round_number(draft.state) == message.round:
        draft.put(replace(agent, moved_at=draft.now))
        draft.state = replace(draft.state, watch=draft.state.watch.moved(draft.now))


def _leave_by(state: State, grace: float, now: float) -> float:
    grace = grace or state.settings.leave_grace
    return now + grace - min(state.settings.leave_margin, grace / 4)


def _fence_reply(draft: Draft, agent: Agent, message: FenceReply) -> None:
    fence = draft.state.fence
    if fence is not None and fence.fence == message.fence and agent.attached:
        replies = fence.replies.with_entry(agent.agent, message.step)
        draft.state = replace(draft.state, fence=replace(fence, replies=replies))


def _stopped(draft: Draft, agent: Agent, message: Stopped) -> None:
    """It has reached the fence, and commits: from now on only time to kill cuts it short."""
    fence = draft.state.fence
    if fence is not None and fence.fence == message.fence and agent.attached:
        deadline = max(fence.deadline, draft.now + draft.state.settings.join_deadline)
        draft.state = replace(draft.state, fence=replace(fence, deadline=deadline, reached=True))


def _fenced(draft: Draft, agent: Agent, message: Fenced) -> None:
    fence = draft.state.fence
    if fence is not None and fence.fence == message.fence and agent.attached:
        fence = replace(fence, fenced=fence.fenced | {agent.agent})
        if message.store_port:
            offers = fence.offers.with_entry(agent.agent, message.store_port)
            fence = replace(fence, offers=offers)
        draft.state = replace(draft.state, fence=fence)


def _committed(draft: Draft, agent: Agent, message: Committed) -> None:
    step = message.step
    if message.in_memory:
        draft.put(replace(agent, held_step=step))
        # Committed once every rank of the round has it.
        step = draft.state.agents.least_held_step()
    state = draft.state
    if message.place:
        told = NewestCommit(message.place, message.step)
        state = replace(state, commits=newest_commits((*state.commits, told)))
    if message.size > 0:
        state = replace(state, commit_bytes=message.size)
    draft.state = replace(
        state,
        committed_step=max(state.committed_step, step),
        last_round=max(state.last_round, message.round),
    )
    if state.round is not None and state.round.round < message.round:
        # Everybody was lost, and the commits alone remember: no number may be used twice.
        draft.end_round(f"the commits know of round {message.round}")


def _workers_failed(draft: Draft, agent: Agent, message: WorkersFailed) -> None:
    draft.put(replace(agent, holds=0))
    if agent.attached and _round_number(draft.state) == message.round:
        draft.end_round(f"workers of worker {agent.pod_index} failed", failed=agent.agent)


def _leave(draft: Draft, agent: Agent, message: Leave) -> None:
    if not agent.leaving:
        leave_by = _leave_by(draft.state, message.grace_seconds, draft.now)
        agent = replace(agent, leaving_since=draft.now, leave_by=leave_by)
    if agent.attached:
        draft.put(replace(agent, joined_at=None))
    elif waits_for_round(draft.state, agent, draft.now):
        draft.put(replace(agent, gives_state=True))
    else:
        draft.let_go(agent, "leaving; its workers are in no round")


def _finished(draft: Draft, agent: Agent, message: Finished) -> None:
    if agent.attached and _round_number(draft.state) == message.round:
        draft.put(replace(agent, finished=True))
        draft.begin_completing()


def _workers_succeeded(draft: Draft, agent: Agent, message: WorkersSucceeded) -> None:
    if agent.attached and _round_number(draft.state) == message.round:
        draft.put(replace(agent, finished=True))
        draft.state = _with_success(draft.state, agent.agent)
        draft.begin_completing()


def _with_success(state: State, name: str) -> State:
    return replace(state, succeeded=state.succeeded | {name})


def _failed(draft: Draft, agent: Agent, message: Failed) -> None:
    state = draft.state
    failed = bounded(replace(message, pod_index=agent.pod_index, node=agent.node))
    failures = with_failure(state.failures, failed)
    if failures == state.failures:
        return
    total = state.failures_total + 1
    draft.state = replace(suspect(state, failed), failures=failures, failures_total=total)
    if state.phase in (Phase.FINISHED, Phase.FAILED):
        return
    rounds, enough = state.attempt_rounds, draft.enough_without
    decision = decide(failed, state.failures, rounds, draft.now, enough)
    if isinstance(decision, Fail):
        draft.fail(decision.reason)
    elif decision is not None:
        draft.exclude(decision.node, decision.reason)


def _inspected(draft: Draft, agent: Agent, message: Inspected) -> None:
    watch = draft.state.watch
    if agent.attached and _round_number(draft.state) == message.round and watch.asked is not None:
        reports = {**watch.reports, agent.agent: message.reports}
        draft.state = replace(draft.state, watch=replace(watch, reports=reports))


def _goodbye(draft: Draft, agent: Agent, message: Goodbye) -> None:
    draft.send(agent.agent, Dismissed("its goodbye was heard"))
    count_out(draft, agent.agent)
    lose(draft, agent.agent, "its torchrun ended")


def _taken(draft: Draft, agent: Agent, message: Taken) -> None:
    draft.put(replace(agent, taken=message.round))
    _settle_electorate(draft)


def _settle_electorate(draft: Draft) -> None:
    """Lets go of earlier rounds' members once enough of all know of the newest."""
    known, settings = draft.state.electorate, draft.state.settings
    if known is None or len(known.groups) < 2 or known.term != settings.term:
        return
    told = draft.state.agents.count_taken(known.round)
    if too_few(known, told, len(draft.state.gone)):
        return
    takers = {one.agent for one in draft.state.agents.values() if one.taken == known.round}
    if not missing(known, takers, draft.state.gone, settings.host):
        contested = known.contested
        if _round_number(draft.state) != known.round:  # it is only to be made
            contested = is_contested(known, takers, draft.state.left, settings.host)
        known = replace(settled(known), contested=contested)
        draft.state = replace(draft.state, electorate=known)
        for name in takers:
            draft.send(name, known)


def _round_number(state: State) -> int:
    return state.round.round if state.round is not None else -1


_HANDLERS: dict[type[object], Callable[[Draft, Agent, Any], None]] = {
    Join: _join,
    Linked: _linked,
    Progress: hear_progress,
    FenceReply: _fence_reply,
    Stopped: _stopped,
    Fenced: _fenced,
    Transferring: _transferring,
    Committed: _committed,
    WorkersFailed: _workers_failed,
    Leave: _leave,
    Finished: _finished,
    WorkersSucceeded: _workers_succeeded,
    Goodbye: _goodbye,
    Failed: _failed,
    Taken: _taken,
    Inspected: _inspected,
    Digested: hear_digests,
    Load: hear_load,
    Reported: hear_figures,
    Tables: hear_tables,
    Doubted: hear_doubt,
    Standing: hear_standing,
}

_IDLE = (Heartbeat, Progress, Failed, Transferring, Load, Reported, Tables)
"""They change nothing that a round depends on, and are nearly all that a large job says."""
