"""Keeps a job's ledger of GPU time: what each event of the coordinator means for it; pure."""

from __future__ import annotations

from dataclasses import replace

from elastic_trainer.coordinator.goodput import Book, Use
from elastic_trainer.coordinator.model import Agent, Event, Phase, Received, State
from elastic_trainer.protocol.message import Heartbeat, Hello, Progress, Transferring


def booked(before: State, after: State, event: Event, now: float) -> State:
    """Return the state after an event with its ledger brought up to it.

    An agent's time is counted when its use changes: that follows from what `_facts` has, which is
    the same for all, and from the agent itself, of whom only its own messages tell.
    """
    moment = int(now * 1000)
    said = event.message if isinstance(event, Received) else None
    if isinstance(said, Heartbeat | Transferring):
        return after
    changed = _facts(before) != _facts(after)
    if isinstance(said, Progress) and not changed:
        return _with_step(after, event, moment)
    if not changed and said is None and before.agents.keys() == after.agents.keys():
        return after
    book = Book(after.ledger.inherit(said.goodput) if isinstance(said, Hello) else after.ledger)
    closing = _closing(before, after)
    if _number(before) != _number(after):
        book.close(moment, closing)
    for name in after.ledger.accounts.keys() - after.agents.keys():
        book.leave(name, moment, closing)
    if isinstance(said, Hello) and said.agent in after.agents:
        since = moment - max(0, said.uncounted_milliseconds)
        use = use_of(after, after.agents[said.agent])
        if use is not None:
            use = Use.REGROUPING if said.goodput.id else Use.STARTING
        book.enter(said.agent, said.processes, since, moment, use)
    concerned = after.agents if changed or said is None else ()
    for name in concerned or ({event.agent} if isinstance(event, Received) else ()):
        if name in after.agents and name in book:
            book.become(name, use_of(after, after.agents[name]), moment, closing)
    if isinstance(said, Progress) and changed:
        first = after.rounds[-1].first_step if after.rounds else None
        if first is not None and first != _first_step(before):
            book.roll_back(first)
        return _with_step(replace(after, ledger=book.ledger), event, moment)
    return replace(after, ledger=book.ledger)


def use_of(state: State, agent: Agent) -> Use | None:
    """Return what an agent's time is used for; None: for the step in progress."""
    if agent.attached and state.round is not None:
        if state.phase in (Phase.COMPLETING, Phase.FINISHED):
            return Use.TRAINING
        if _makes_steps(state):
            return None
        return Use.STARTING if agent.agent in state.newcomers else Use.REGROUPING
    if agent.node in state.excluded or state.phase is Phase.FAILED:
        return Use.WAITING
    if state.checking:
        return Use.NODE_CHECK
    if state.phase is Phase.FORMING:
        return Use.STARTING if _enough(state) else Use.WAITING
    if state.phase is Phase.FINISHED:
        return Use.TRAINING
    if agent.agent in state.last_members:
        return Use.REGROUPING
    full = state.round is not None and len(state.round.members) >= state.settings.max_nodes
    return Use.WAITING if full else Use.STARTING


def _with_step(state: State, event: Event, now: int) -> State:
    assert isinstance(event, Received) and isinstance(event.message, Progress)
    told = event.message
    if event.agent not in state.ledger.accounts or told.round != _number(state):
        return state
    book = Book(state.ledger)
    book.stepped(event.agent, told.step, now, told.stall_milliseconds, told.input_milliseconds)
    return replace(state, ledger=book.ledger)


def _closing(before: State, after: State) -> Use:
    """Return what the time since the last step of a round that is over was."""
    if after.hangs_total > before.hangs_total:
        return Use.HANG
    if after.phase in (Phase.COMPLETING, Phase.FINISHED):
        return Use.TRAINING
    reached = before.fence is not None and before.fence.reached
    return Use.REGROUPING if reached else Use.REDONE


def _facts(state: State) -> tuple[object, ...]:
    """Return all that decides on the uses of more than one agent."""
    return (
        state.phase,
        _number(state),
        _makes_steps(state),
        state.checking,
        _enough(state),
        len(state.excluded),
        state.settings.max_nodes,
    )


def _enough(state: State) -> bool:
    return state.settings.size(len(state.agents)) > 0


def _number(state: State) -> int:
    return state.round.round if state.round is not None else -1


def _first_step(state: State) -> int | None:
    return state.rounds[-1].first_step if state.rounds else None


def _makes_steps(state: State) -> bool:
    if state.round is None or not state.rounds:
        return False
    newest = state.rounds[-1]
    return newest.first_step is not None or newest.adopted
