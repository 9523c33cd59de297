"""Has all of a round's workers stop at one step: asks where they are, tells where to stop, and ends
the round once they stand there."""

from __future__ import annotations

from collections.abc import Collection

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.hang_check import end_if_hung
from elastic_trainer.coordinator.model import Fence
from elastic_trainer.coordinator.persistent_map import PersistentMap
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import FenceStop


def settle_fencing(draft: Draft) -> None:
    """Ends the round once all stand at its fence, or it is too late for that."""
    state, now = draft.state, draft.now
    fence = state.fence
    assert fence is not None
    leavers = draft.leavers()
    if leavers:
        limit = min(agent.leave_by for agent in leavers)
        if fence.deadline > limit:
            fence = replace(fence, deadline=max(limit, now))
    if not fence.reached and end_if_hung(draft):
        return
    if fence.stop is None and _all_members(draft, fence.replies):
        # Nobody runs past the end of the step in progress when asked, or of the one after it.
        newest = max(fence.replies.values())
        further = 0 if fence.at_once and newest >= 0 else 1
        leaving = frozenset(agent.agent for agent in leavers)
        fence = replace(fence, stop=newest + further, leavers=leaving)
        fence = _tell_stop(draft, fence)
    draft.state = replace(draft.state, fence=fence)
    if fence.stop is not None and fence.leavers != {agent.agent for agent in leavers}:
        fence = tell_stop_anew(draft, fence)
    if _all_members(draft, fence.fenced):
        draft.end_round(_fence_reason(draft, fence))
        _take_offers(draft, fence)
    elif now >= fence.deadline:
        draft.end_round(f"{fence.reason}; the fence was not reached in time")


def _take_offers(draft: Draft, fence: Fence) -> None:
    """Count those as waiting whose workers will, so that the next round needs no further word."""
    agents = draft.state.agents
    found = ((agents.get(name), port) for name, port in fence.offers.items())
    draft.put_all(
        replace(agent, joined_at=draft.now, store_port=port, live=True)
        for agent, port in found
        if agent is not None and agent.expected
    )


def _all_members(draft: Draft, told: Collection[str]) -> bool:
    """Tell whether all attached agents are among those who have told of something."""
    if len(told) < draft.state.agents.count(Trait.ATTACHED):  # nearly always
        return False
    return all(agent.agent in told for agent in draft.attached())


def _fence_reason(draft: Draft, fence: Fence) -> str:
    """Why the round changes, as of its end: others may have come since the fence was begun."""
    return change_of_members(draft.leavers(), draft.ready()) or fence.reason


def tell_stop_anew(draft: Draft, fence: Fence) -> Fence:
    """Tell all who leaves now, and return the fence of another number by which they say that they
    stand there: who stood there knowing less may have left something to one that leaves, too."""
    state, settings = draft.state, draft.state.settings
    number = state.last_fence + 1
    leavers = draft.leavers()
    deadline = max(fence.deadline, draft.now + settings.join_deadline)
    limit = min((agent.leave_by for agent in leavers), default=deadline)
    leaving = frozenset(agent.agent for agent in leavers)
    fence = replace(
        fence,
        fence=number,
        deadline=max(min(deadline, limit), draft.now),
        leavers=leaving,
        fenced=frozenset(),
        offers=PersistentMap(),
    )
    draft.state = replace(state, fence=fence, last_fence=number)
    return _tell_stop(draft, fence)


def _tell_stop(draft: Draft, fence: Fence) -> Fence:
    """Tell all where to stop, and return the fence with what they were told."""
    stop = fence.stop
    assert stop is not None and draft.state.round is not None
    attached = draft.attached()
    number = draft.state.round.round
    stay = [agent for agent in attached if not agent.leaving]
    size = draft.state.settings.size
    # They would wait for others with the only live state, and may have to leave, too. Newcomers
    # that wait don't count, as they may be gone by then.
    fence = replace(fence, commits=fence.commits or not size(len(stay)))
    # Newcomers, of whichever order, take no place of one that goes on with the state.
    there = [*stay, *draft.waiting()]
    next_ = frozenset(agent.agent for agent in there[: size(len(there))])
    staying = {agent.agent for agent in stay}
    displaced = staying - next_
    draft.state = replace(draft.state, fence=fence, promised=next_ & staying)
    # One that the next round has no place for is as good as lost: of any part there are two.
    placed = max(len(stay) - size(len(stay)), len(displaced)) <= 1
    stops = {
        (leaving, waits): FenceStop(
            fence.fence,
            number,
            stop,
            leaving,
            commit=fence.commits,
            memory_stays=placed and not leaving,
            displaced=waits,
        )
        for leaving, waits in ((False, False), (False, True), (True, False))
    }
    for agent in attached:
        draft.send(agent.agent, stops[agent.leaving, agent.agent in displaced])
    return fence


def change_of_members(leavers: list[Agent], joiners: list[Agent]) -> str:
    """Return in words who leaves, and who joins."""
    parts = []
    for verb, agents in (("left", leavers), ("joined", joiners)):
        if agents:
            who = ", ".join(str(agent.pod_index) for agent in agents)
            parts.append(f"worker {who} {verb}")
    return "; ".join(parts)
