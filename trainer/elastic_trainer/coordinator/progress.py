"""Hears how far the workers are: the steps of the round, and their speed; pure."""

from __future__ import annotations

from elastic_trainer.coordinator.agents import Agent, Reached
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import RoundRecord, State
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import AgentMessage, Progress

SPEED_WINDOW = 5.0
"""Seconds over which /status averages the speed."""


def reached(agent: Agent, message: AgentMessage, now: float) -> Reached | None:
    """Return the progress that an agent's workers have told last, this message included."""
    if not isinstance(message, Progress):
        return agent.reached
    time = now - message.age_seconds
    lost = message.stall_milliseconds, message.input_milliseconds
    return Reached(message.round, message.step, time, *lost)


def hear_progress(draft: Draft, agent: Agent, message: Progress) -> None:
    """Takes note of a step that an agent's workers have applied."""
    if message.step_seconds and message.step_seconds != agent.step_seconds:
        draft.put(replace(agent, step_seconds=message.step_seconds))
    state = draft.state
    number = state.round.round if state.round is not None else -1
    time = draft.now - message.age_seconds
    rounds = list(state.rounds)
    for i in range(len(rounds) - 1, -1, -1):
        if rounds[i].round == message.round:
            if rounds[i].first_step is None and number == message.round:
                # It went on from the step before: later ones were undone, or not to be restored.
                committed = min(state.committed_step, message.step - 1)
                state = replace(state, committed_step=committed, step=message.step)
                state = _trained(state)
            previous = rounds[i - 1].last_step_time if i else None
            rounds[i] = _advance(rounds[i], previous, message, time)
            break
    draft.state = replace(state, rounds=tuple(rounds))
    if number != message.round:
        return
    samples = state.samples
    if not samples or message.step > samples[-1][1]:
        samples = (*(s for s in samples if s[0] > time - SPEED_WINDOW), (time, message.step))
    watch = state.watch.stepped(message.step, time)
    newest = max(state.step, message.step)
    draft.state = replace(
        draft.state,
        step=newest,
        samples=samples,
        total_samples=message.total_samples,
        watch=watch,
    )


def _trained(state: State) -> State:
    """Return it once its round has made a step: whoever is live there has the newest state."""
    assert state.round is not None
    known = state.electorate
    if known is not None and known.contested and known.round == state.round.round:
        known = replace(known, contested=False)
    members = frozenset(member.agent for member in state.round.members)
    return replace(state, electorate=known, trained=members)


def _advance(
    record: RoundRecord, previous: float | None, told: Progress, time: float
) -> RoundRecord:
    if record.first_step_time is None or time < record.first_step_time:
        record = replace(
            record,
            first_step=told.step,
            first_step_time=time,
            first_samples=told.samples,
            pause_seconds=None if previous is None else max(0.0, time - previous),
        )
    if record.last_step is None or told.step > record.last_step:
        record = replace(
            record, last_step=told.step, last_step_time=time, last_samples=told.samples
        )
    return record
