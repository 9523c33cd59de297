"""The ways between the coordinator's phases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic_trainer.coordinator.model import Phase


@dataclass(frozen=True)
class Transition:
    """One way from a phase to another."""

    before: Phase
    cause: str
    after: Phase


_FAILS = "the failures are the script's, or too few nodes are left"
_ENDS = "workers failed, an agent was lost, or a deadline passed"

TRANSITIONS = (
    Transition(Phase.FORMING, "enough agents have joined", Phase.RUNNING),
    Transition(Phase.FORMING, "after the coordinator's restart: an agent's round", Phase.ADOPTING),
    Transition(Phase.ADOPTING, "all members are back", Phase.RUNNING),
    Transition(Phase.ADOPTING, "all members are back, told where to stop", Phase.FENCING),
    Transition(Phase.ADOPTING, "all members are back, some out of the loop", Phase.COMPLETING),
    Transition(Phase.ADOPTING, "a member is missing, was replaced, or failed", Phase.RESTARTING),
    Transition(Phase.RUNNING, "an agent leaves, or some wait to be let in", Phase.FENCING),
    Transition(Phase.RUNNING, _ENDS, Phase.RESTARTING),
    Transition(Phase.RUNNING, "workers are out of the loop, or ended with 0", Phase.COMPLETING),
    Transition(Phase.FENCING, "all members stand at the fence, committed", Phase.RESTARTING),
    Transition(Phase.FENCING, _ENDS, Phase.RESTARTING),
    Transition(Phase.FENCING, "workers are out of the loop, or ended with 0", Phase.COMPLETING),
    Transition(Phase.RESTARTING, "the members are back", Phase.RUNNING),
    Transition(Phase.RESTARTING, "too few are left to wait for", Phase.FORMING),
    Transition(Phase.COMPLETING, _ENDS, Phase.RESTARTING),
    Transition(Phase.COMPLETING, "all members' workers have ended with 0", Phase.FINISHED),
    Transition(Phase.FORMING, _FAILS, Phase.FAILED),
    Transition(Phase.ADOPTING, _FAILS, Phase.FAILED),
    Transition(Phase.RUNNING, _FAILS, Phase.FAILED),
    Transition(Phase.FENCING, _FAILS, Phase.FAILED),
    Transition(Phase.RESTARTING, _FAILS, Phase.FAILED),
    Transition(Phase.COMPLETING, _FAILS, Phase.FAILED),
    Transition(Phase.FAILED, "a new agent joins", Phase.FORMING),
)
"""All ways between phases; one event may go several of them at once. Drawn in
docs/architecture.md, to which a test holds it."""


def as_table(transitions: Iterable[Transition]) -> str:
    """Return transitions as a Markdown table, those of one cause and end in one row."""
    rows: dict[tuple[str, Phase], list[str]] = {}
    for one in transitions:
        rows.setdefault((one.cause, one.after), []).append(one.before.value)
    lines = [
        f"| {', '.join(before)} | {cause} | {after.value} |"
        for (cause, after), before in rows.items()
    ]
    return "\n".join(["| from | because | to |", "| --- | --- | --- |", *lines])
