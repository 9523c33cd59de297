"""Keeps the figures that a job's script reports, such as its loss; pure."""

from __future__ import annotations

from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.protocol.message import Reported

MOST = 16
"""Names; a process can report no more."""


def hear_figures(draft: Draft, agent: Agent, message: Reported) -> None:
    """Takes what an agent's worker reports; of too many names the newest stay."""
    found = dict(draft.state.figures)
    for name, value in zip(message.names, message.values, strict=False):
        found.pop(name, None)
        found[name] = value
    newest = list(found.items())[-MOST:]
    draft.state = replace(draft.state, figures=dict(newest))
