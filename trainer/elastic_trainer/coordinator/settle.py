"""Brings the state to rest, whatever event changed it: form, adopt, fence or end a round.

`settle` looks only at the state and the time, so a missed or repeated event can't leave a round
stuck.
"""

from __future__ import annotations

from collections.abc import Collection

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.divergence_check import diverged_ranks
from elastic_trainer.coordinator.doubt_check import settle_doubts
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.exclusion import lift
from elastic_trainer.coordinator.feeders import feeders, standby
from elastic_trainer.coordinator.fencing import change_of_members, settle_fencing, tell_stop_anew
from elastic_trainer.coordinator.hang_check import end_if_hung
from elastic_trainer.coordinator.joining import patience, start_up
from elastic_trainer.coordinator.leavers import (
    has_alone,
    last_round,
    left_out,
    some_come,
    to_let_go,
)
from elastic_trainer.coordinator.losses import lose_with_coordinator
from elastic_trainer.coordinator.model import LONG_STEP, Fence, Phase, RoundRecord, State
from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.places import choose_places
from elastic_trainer.coordinator.recheck import awaits_check
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.straggler_check import change_of_shares, shares_of
from elastic_trainer.protocol.message import (
    Completed,
    Dismissed,
    Electorate,
    Exclusion,
    FenceAsk,
    FenceCancel,
    Group,
    Member,
    Round,
)
from elastic_trainer.succession.electorate import (
    earlier_groups,
    electorate_of,
    is_contested,
    missing,
    voters,
)

UNSEEN_RUNS = 1000
"""Run numbers that a new coordinator passes over: more than rounds that nobody left has seen."""
KEPT_ROUNDS = 200
NO_PLACE = "who has no place in the next round gives away what it has"


def settle(draft: Draft) -> None:
    """Brings the state to where nothing is left to do before the next event."""
    lift(draft)
    phase = draft.state.phase
    if phase is Phase.ADOPTING:
        _settle_adopting(draft)
    if draft.state.phase is Phase.RUNNING:
        _settle_running(draft)
    if draft.state.phase is Phase.FENCING:
        settle_fencing(draft)
    if draft.state.phase is Phase.COMPLETING:
        _settle_completing(draft)
    settle_doubts(draft)
    if draft.state.phase in (Phase.FORMING, Phase.RESTARTING):
        _settle_forming(draft)


def _settle_forming(draft: Draft) -> None:
    for agent in to_let_go(draft.state, draft.now):
        draft.let_go(agent, "leaving; there was no round in time to give away what it has")
    _prewarm(draft)
    last = last_round(draft.state, draft.now)
    # Whoever leaves may make one, too, where no other side can.
    if last and not _missing(draft, draft.state.agents, {agent.agent for agent in last}):
        if _enough_know(draft, last):  # else they are told, and of no other round meanwhile
            _form(draft, last, stepless=True)
        return
    state, now = draft.state, draft.now
    size = state.settings.size(draft.count_ready())
    choose = draft.ready if size else draft.waiting  # rather those who were late than nobody
    size = size or state.settings.size(draft.count_waiting())
    if state.phase is Phase.RESTARTING:
        if state.agents.count(Trait.AWAITED) and now < state.restart_deadline:
            return
        if size == 0:
            draft.state = replace(state, phase=Phase.FORMING)
            draft.expect(frozenset())
            return
    elif size == 0:
        if state.enough_since is not None:
            draft.state = replace(state, enough_since=None)
        return
    else:
        since = now if state.enough_since is None else state.enough_since
        draft.state = state = replace(state, enough_since=since)
        everybody = size == state.settings.size(state.settings.max_nodes)
        # Just restarted, we may not have heard of the running round yet.
        wait = state.started if everybody else max(since, state.started)
        if now < wait + state.settings.grace:
            could_be_back = state.returning and size >= _fewest_back(state)
            if not could_be_back or not _all_are_back(
                state, choose_places(choose(), size, state.promised)
            ):
                return
    if some_come(draft.state, now) or not _enough_agree(draft):
        return
    chosen = choose_places(choose(), size, state.promised)
    if awaits_check(draft, chosen):
        return
    if all_ := left_out(state, chosen):
        if _enough_know(draft, all_):  # who has no place gives what it has to those who have one
            _form(draft, all_, stepless=True)
    elif _enough_know(draft, chosen):
        _form(draft, chosen)


def _fewest_back(state: State) -> int:
    """Return how many `_all_are_back` waits for at least."""
    groups = state.electorate.groups if state.electorate is not None else ()
    return max((len(group.members) for group in groups), default=0) - len(state.gone)


def _all_are_back(state: State, chosen: list[Agent]) -> bool:
    """Tell whether an elected coordinator has all members of the newest rounds for the next one,
    but for those that are proven gone: nobody is to be waited for."""
    known = state.electorate
    if not state.returning or known is None:
        return False
    members = {member.agent for group in known.groups for member in group.members}
    return members - state.gone <= {agent.agent for agent in chosen}


def _enough_agree(draft: Draft) -> bool:
    """Tell whether no other side can make a round, too: enough of those who know of the newest
    one follow this coordinator."""
    state, settings = draft.state, draft.state.settings
    known = state.electorate
    if known is None and state.last_round == 0 and settings.host:
        # It was perhaps started anew, and is told by others that there is a coordinator.
        own = state.agents.get(settings.host)
        return own is not None and own.joined_at is not None
    lacking = _missing(draft, state.agents)
    if lacking != state.missing:
        draft.state = replace(state, missing=lacking)
    return not lacking


def _enough_know(draft: Draft, chosen: list[Agent]) -> bool:
    """Tell whether enough of those who could elect another host are in the round to be made. If
    not, they are told of it first: it begins once enough of them have taken note."""
    state = draft.state
    names = {agent.agent for agent in chosen}
    if not _missing(draft, names, names):
        return True
    known = state.electorate
    assert known is not None
    if {member.agent for member in known.groups[-1].members} != names:
        number, members = state.last_round + 1, _members(chosen)
        groups = (*earlier_groups(known, members), Group(members))
        contested = _is_contested(draft, chosen) or not _newest(draft).issuperset(names)
        proposed = Electorate(state.settings.term, number, groups, contested)
        draft.state = replace(state, electorate=proposed, last_round=number)
        for name in voters(proposed).keys() & state.agents.keys():
            draft.send(name, proposed)
    return False


def _missing(
    draft: Draft, present: Collection[str], members: Collection[str] = ()
) -> tuple[Member, ...]:
    """Return who is missed.

    Args:
        members: of the round to be made, who may be leaving; other leavers decide nothing.
    """
    gone = draft.state.gone | draft.leaving().difference(members)
    return missing(draft.state.electorate, present, gone, draft.deciding_host())


def _is_contested(draft: Draft, chosen: list[Agent]) -> bool:
    """Tell whether a round of these may lack commits that others made before they ended."""
    state, known = draft.state, draft.state.electorate
    if known is None:  # the electors' knowledge has ended with them
        return any(agent.live and agent.port for agent in chosen)
    names = {agent.agent for agent in chosen}
    newest = _newest(draft)
    if newest and newest.isdisjoint(names):
        return True  # those who trained last are not ready, or gone
    return is_contested(known, names, state.left | draft.leaving(), draft.deciding_host())


def _newest(draft: Draft) -> frozenset[str]:
    """Return the agents whose workers made the newest step that is known of."""
    known = draft.state.electorate
    if draft.state.trained or known is None or not known.groups:
        return draft.state.trained
    return frozenset(member.agent for member in known.groups[-1].members)


def _members(chosen: list[Agent]) -> tuple[Member, ...]:
    """Return the agents as members of a round; with a vote each if all take part in elections.

    Those that don't wait for worker 0. So where an edit of the job's environment has some take part
    and others not, none does: else a part of them would go on without the others.
    """
    elect = all(agent.port for agent in chosen)
    return tuple(Member(a.agent, a.pod_index, a.address, a.port if elect else 0) for a in chosen)


def _prewarm(draft: Draft) -> None:
    """Let newcomers start workers while the others train on, where workers recover in process."""
    state = draft.state
    if not draft.count_waiting(Trait.COLD) or not _live(draft):
        return
    cold = [
        agent
        for agent in state.agents.values()
        if agent.waiting and not agent.live and agent.node not in state.excluded
    ]
    draft.put_all(replace(agent, standby=True) for agent in cold)
    known = feeders(draft)
    for agent in cold:
        draft.send(agent.agent, standby(known, agent.pod_index))


def _live(draft: Draft) -> bool:
    """Return whether a worker waits or trains that goes from round to round in process."""
    agents = draft.state.agents
    if draft.state.round is not None:
        return agents.all_attached(Trait.LINKED) and agents.all_attached(Trait.RECOVERS)
    return agents.count(Trait.LIVE) > 0


def _last_run(state: State) -> int:
    """Return the number that runs of the next round are to go beyond: the coordinator before this
    one, and all who were in its last rounds, may have gone with what they knew."""
    made = any(not record.adopted for record in state.rounds)
    return state.last_run if made else state.last_run + UNSEEN_RUNS


def _form(draft: Draft, chosen: list[Agent], *, stepless: bool = False) -> None:
    _give_shares(draft, chosen)
    state, now = draft.state, draft.now
    reduced = shares_of(state, chosen)
    members = _members(chosen)
    number, first = state.last_round + 1, chosen[0]
    made = Round(
        number,
        members,
        first.address,
        first.store_port,
        state.reason,
        commits=state.commits,
        term=state.settings.term,
        groups=earlier_groups(state.electorate, members),
        contested=_is_contested(draft, chosen),
        last_run=_last_run(state),
        diverged=diverged_ranks(state, chosen),
        reduced=tuple(rank for rank, _ in reduced),
        shares=tuple(share for _, share in reduced),
        excluded=tuple(Exclusion(*item) for item in sorted(state.excluded.items())),
        stepless=stepless,
    )
    electorate = electorate_of(made)
    draft.expect(frozenset())
    draft.put_all(
        replace(
            agent,
            joined_at=None,
            live=False,
            standby=False,
            expected=False,
            gives_state=False,
            holds=number if agent.holds else 0,
            parts=(),
            attached=True,
            linked=False,
            finished=False,
            held_step=-1,
            recovers=agent.live,
            pids=(),
            feed_port=0,
        )
        for agent in chosen
    )
    for agent in chosen:
        draft.send(agent.agent, made)
    for name in voters(electorate).keys() & state.agents.keys() - {a.agent for a in chosen}:
        draft.send(name, electorate)
    live = all(agent.live for agent in chosen)
    record = RoundRecord(number, len(members), now, state.reason, live=live)
    draft.state = replace(
        draft.state,
        phase=Phase.RUNNING,
        round=made,
        round_since=now,
        last_round=number,
        last_run=made.last_run,
        electorate=electorate,
        missing=(),
        returning=frozenset(),
        newcomers=frozenset(agent.agent for agent in chosen) - state.last_members,
        last_members=frozenset(agent.agent for agent in chosen),
        promised=frozenset(),
        fence=None,
        enough_since=None,
        larger_since=None,
        samples=(),
        watch=state.watch.begun(now),
        rounds=(*state.rounds, record)[-KEPT_ROUNDS:],
    )
    draft.let_givers_go()


def _give_shares(draft: Draft, chosen: list[Agent]) -> None:
    """Takes over shares of samples that are due; all are equal where workers start anew, who do not
    hear of any."""
    live = all(agent.live for agent in chosen)
    ranks = {
        (agent.agent, local_rank)
        for agent in chosen
        for local_rank in range(len(agent.worked) if live else 0)
    }
    draft.state = replace(draft.state, shares=draft.state.shares.begun(ranks))


def _settle_adopting(draft: Draft) -> None:
    state = draft.state
    assert state.round is not None
    if state.agents.count(Trait.ATTACHED) < len(state.round.members):
        if _electors_are_back(state) or draft.now >= state.restart_deadline:
            back = {agent.agent for agent in draft.attached()}
            members = state.round.members
            lose_with_coordinator(draft, {m.pod_index for m in members if m.agent not in back})
        return
    attached = draft.attached()
    draft.state = replace(state, phase=Phase.RUNNING)
    draft.let_givers_go()
    if state.succeeded or any(agent.finished for agent in attached):
        draft.begin_completing()
        return
    asked = max((agent.told_fence for agent in attached), default=0)
    if asked == 0:
        return
    stop = max(a.told_stop for a in attached if a.told_fence == asked)
    commits = any(agent.told_commit for agent in attached)
    if stop < 0:
        cancel = FenceCancel(asked)
        for agent in attached:
            draft.send(agent.agent, cancel)
        return
    # Some rank may have been told where to stop, or stand there: all must stop there too.
    fence = Fence(
        asked,
        "the fence before the coordinator's restart",
        draft.now + state.settings.join_deadline,
        replies=PersistentMap({agent.agent: -1 for agent in attached}),
        stop=stop,
        commits=commits,
    )
    draft.state = replace(draft.state, phase=Phase.FENCING, fence=fence)
    tell_stop_anew(draft, fence)


def _electors_are_back(state: State) -> bool:
    """Tell whether all members that elected this coordinator are attached."""
    assert state.round is not None
    for name in state.returning:
        agent = state.agents.get(name)
        if (agent is None or not agent.attached) and state.round.rank_of(name) is not None:
            return False
    return bool(state.returning)


def _settle_running(draft: Draft) -> None:
    _prewarm(draft)
    if _end_if_places_stay_empty(draft) or end_if_hung(draft):
        return
    state, now, settings = draft.state, draft.now, draft.state.settings
    members = state.agents.count(Trait.ATTACHED)
    is_linked = state.agents.all_attached(Trait.LINKED)
    leavers = draft.leavers()
    assert state.round is not None
    stepless = state.round.stepless
    if not (leavers or is_linked) and now < state.round_since + settings.unlinked_join:
        return
    joiners = _due_joiners(draft, members - len(leavers))
    rebalanced = state.shares.due and state.agents.all_attached(Trait.RECOVERS)
    if not (leavers or joiners or rebalanced or (stepless and is_linked)):
        return
    given = NO_PLACE if stepless else change_of_shares(state)
    reason = change_of_members(leavers, joiners) or given
    if is_linked:
        number = state.last_fence + 1
        at_once = bool(leavers) and state.step_seconds > LONG_STEP
        fence = Fence(number, reason, now + settings.join_deadline, at_once)
        draft.state = replace(state, phase=Phase.FENCING, fence=fence, last_fence=number)
        ask = FenceAsk(number, state.round.round, at_once)
        for agent in draft.attached():
            draft.send(agent.agent, ask)
        return
    if any(
        now >= _waits_unlinked_until(state, agent) for agent in leavers
    ) or _may_restart_unlinked(draft, members, joiners):
        draft.end_round(reason)


def _waits_unlinked_until(state: State, leaver: Agent) -> float:
    """Return until when a leaver waits for a round to link, which has a fence only then: as long as
    it may where it has something to give away, or where too few stay with the state, so that all
    commit there."""
    agents = state.agents
    enough = state.settings.size(agents.count(Trait.ATTACHED) - agents.count(Trait.LEAVING))
    if leaver.recovers and (not enough or has_alone(state, leaver)):
        return leaver.leave_by
    return (leaver.leaving_since or 0.0) + state.settings.unlinked_leave


def _end_if_places_stay_empty(draft: Draft) -> bool:
    """Ends a round of waiting workers that some do not enter, where no state moves any more."""
    state, now, settings = draft.state, draft.now, draft.state.settings
    if now < state.round_since + settings.place_deadline:
        return False
    if state.agents.all_attached(Trait.LINKED) or not state.agents.all_attached(Trait.RECOVERS):
        return False
    attached = draft.attached()
    away = [agent for agent in attached if not agent.linked]
    moved = max(agent.moved_at for agent in attached)
    if now < max(state.round_since, moved) + settings.place_deadline:
        return False
    who = ", ".join(str(agent.pod_index) for agent in away)
    newcomers = [agent.agent for agent in away if agent.agent in state.newcomers]
    draft.end_round(f"worker {who} did not take its place in time")
    for name in newcomers:
        agent = draft.state.agents[name]
        wait = min(settings.retry_late * 2**agent.late, settings.retry_late_limit)
        draft.put(replace(agent, late=agent.late + 1, retry_at=now + wait))
    return True


def _may_restart_unlinked(draft: Draft, members: int, joiners: list[Agent]) -> bool:
    """Return whether a round that has not linked is to be restarted for joiners.

    Its scripts may still be loading what they need, and begin anew each time; or they have no
    link, and never will. So joiners gather: each restart makes the world twice as large, or
    comes after a while without a further joiner.
    """
    settings, now = draft.state.settings, draft.now
    if not joiners or now < draft.state.round_since + settings.unlinked_join:
        return False
    since = [agent.joined_at or 0.0 for agent in joiners]
    quiet = now >= max(since) + settings.unlinked_quiet
    waited = now >= min(since) + settings.unlinked_limit
    everybody = settings.size(members + len(joiners)) == settings.size(settings.max_nodes)
    return quiet or waited or everybody or len(joiners) >= members


def _due_joiners(draft: Draft, staying: int) -> list[Agent]:
    """Those who would make the world larger, if it is time to let them in."""
    state, settings, now = draft.state, draft.state.settings, draft.now
    newcomers = settings.size(staying + draft.count_ready()) - staying
    if newcomers <= 0:
        if state.larger_since is not None:
            draft.state = replace(state, larger_since=None)
        return []
    if _live(draft):  # nobody restarts: a change mostly costs less than waiting for others
        since = now if state.larger_since is None else state.larger_since
        draft.state = replace(state, larger_since=since)
        seconds = start_up(state.rounds, state.step_seconds)
        wait = patience(seconds, staying, newcomers, settings.join_wait)
        return draft.ready() if now >= since + wait or staying < settings.min_nodes else []
    waiting = draft.ready()
    joined = [agent.joined_at or 0.0 for agent in waiting]
    due = min(max(joined) + settings.batching, min(joined) + settings.batching_limit)
    return waiting if now >= due else []


def _settle_completing(draft: Draft) -> None:
    """All again where one fails: their scripts' tails may have collectives."""
    state, now = draft.state, draft.now
    assert state.round is not None
    members = state.round.members
    succeeded = state.succeeded
    if len(succeeded) >= len(members) and all(one.agent in succeeded for one in members):
        draft.state = replace(state, phase=Phase.FINISHED)
        # Also those that start workers, which ask for a round once nobody is left to answer.
        everybody = state.agents.values()
        draft.put_all(replace(agent, joined_at=None, standby=False) for agent in everybody)
        completed = Completed()
        for agent in everybody:
            draft.send(agent.agent, completed)
        return
    for agent in draft.leavers():
        if agent.agent in state.succeeded:
            draft.put(replace(agent, attached=False))
            draft.send(agent.agent, Dismissed("leaving; its workers have ended"))
        elif now >= agent.leave_by:
            draft.end_round(f"worker {agent.pod_index} left before its script's end")
            return
