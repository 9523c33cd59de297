"""Has ranks looked at when no step comes; ends what hangs, and a job that does so again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from elastic_trainer.coordinator.agents import Agent, Trait
from elastic_trainer.coordinator.draft import Draft
from elastic_trainer.coordinator.failure_policy import Exclude, Fail, decide_hang
from elastic_trainer.coordinator.hang import ANSWER_SECONDS, Hang, judge, with_hang
from elastic_trainer.coordinator.replacement import replace
from elastic_trainer.coordinator.set_seconds import set_seconds
from elastic_trainer.protocol.message import Inspect, WorkerReport

HANG_VARIABLE = "VOLCANO_ELASTIC_HANG_SECONDS"
"""The least without a step after which training may hang; 0: it never does."""
HANG_SECONDS = 60.0


def least_seconds(environment: Mapping[str, str]) -> float:
    """Return them as set, infinite for never. Raises ValueError for what is no time."""
    return set_seconds(environment, HANG_VARIABLE, HANG_SECONDS, "never") or math.inf


def end_if_hung(draft: Draft) -> bool:
    """Return whether the round was ended, as its ranks hang; agents are asked for their workers'
    stacks first."""
    state, now = draft.state, draft.now
    watch, least = state.watch, state.settings.hang_seconds
    if now < watch.since + least or now < watch.since + watch.limit(least):
        return False
    if state.round is None or not state.agents.all_attached(Trait.LINKED):
        return False
    awaited = watch.asked is not None and now < watch.asked + ANSWER_SECONDS
    if awaited and len(watch.reports) < state.agents.count(Trait.ATTACHED):  # members alone report
        return False
    attached = draft.attached()
    if watch.asked is None:
        draft.state = replace(state, watch=replace(watch, asked=now, reports={}))
        inspect = Inspect(state.round.round)
        for agent in attached:
            draft.send(agent.agent, inspect)
        return False
    silent = [agent for agent in attached if agent.agent not in watch.reports]
    reports = [one for told in watch.reports.values() for one in told]
    found = judge(reports, [one.pod_index for one in silent], watch, state.round.round, now)
    found = replace(found, nodes=_nodes(found, attached, watch.reports))
    watch = replace(watch, working=True, asked=None, reports={})
    draft.state = replace(state, hangs=with_hang(state.hangs, found), watch=watch)
    if found.broken:
        watch = watch.broken(state.step)
        draft.state = replace(draft.state, watch=watch, hangs_total=state.hangs_total + 1)
        _end(draft, found, state.hangs)
    return found.broken


def _end(draft: Draft, found: Hang, earlier: Sequence[Hang]) -> None:
    """Ends the round, and what a round before that hung at the same step calls for."""
    decision = decide_hang(found, earlier, draft.state.attempt_rounds, draft.enough_without)
    if isinstance(decision, Fail):
        advice = f"if that step is only slow, set {HANG_VARIABLE} to more; see describe's stacks"
        draft.fail(f"{decision.reason} ({advice})")
        return
    draft.end_round(f"no step for {found.seconds:.0f} s: {found.words}")
    if isinstance(decision, Exclude):
        draft.exclude(decision.node, decision.reason)


def _nodes(
    found: Hang, attached: Sequence[Agent], reports: Mapping[str, Sequence[WorkerReport]]
) -> tuple[str, ...]:
    """Return the nodes of those for whom others wait, or of a lone one, or of the silent."""
    ranks = {one.rank for told in reports.values() for one in told}
    culprits = set(found.behind) or (ranks if len(ranks) == 1 else set())
    behind = {
        agent.node
        for agent in attached
        if any(one.rank in culprits for one in reports.get(agent.agent, ()))
    }
    silent = {agent.node for agent in attached if agent.agent not in reports}
    return tuple(sorted(behind or silent))
