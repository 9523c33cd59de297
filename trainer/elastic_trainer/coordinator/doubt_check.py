"""Has members asked whether their workers are there, where one doubts that its round stands."""

from __future__ import annotations

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.model import Phase
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import AskStanding, Doubted, RoundStands, Standing


def hear_doubt(draft: Draft, agent: Agent, message: Doubted) -> None:
    state = draft.state
    if agent.attached and state.round is not None and state.round.round == message.round:
        doubts = state.doubts.with_doubt(agent.agent, message.doubt, draft.now)
        draft.state = replace(state, doubts=doubts)


def hear_standing(draft: Draft, agent: Agent, message: Standing) -> None:
    state = draft.state
    if agent.attached and state.round is not None and state.round.round == message.round:
        doubts = state.doubts.answered(agent.agent, message.question)
        draft.state = replace(state, doubts=doubts)


def settle_doubts(draft: Draft) -> None:
    """Tell those that doubted, if all members have answered; ask anew for those that have since."""
    state = draft.state
    doubts, round_ = state.doubts, state.round
    if round_ is None or state.phase is Phase.ADOPTING:  # not all members are back
        return
    # Nothing can be wrong any more with those whose workers have succeeded, and one whose stream
    # breaks may come back without having heard the question.
    there = len(doubts.standing) + len(state.succeeded)
    answered = doubts.told and there >= state.agents.count(Trait.ATTACHED)
    if answered and all(
        one.agent in doubts.standing or one.agent in state.succeeded for one in draft.attached()
    ):
        for name, doubt in doubts.told.items():
            draft.send(name, RoundStands(round_.round, doubt))
        doubts = doubts.settled()
    if doubts.is_due(draft.now):
        doubts = doubts.asked()
        question = AskStanding(round_.round, doubts.question)
        for agent in draft.attached():
            draft.send(agent.agent, question)
    if doubts is not state.doubts:
        draft.state = replace(state, doubts=doubts)
