"""Makes the answer to `GET /status`; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elastic_trainer.coordinator import hang, tables
from elastic_trainer.coordinator.bookkeeping import ledger_as_of
from elastic_trainer.coordinator.divergence_check import as_json as diverged_as_json
from elastic_trainer.coordinator.load import as_json as loads_as_json
from elastic_trainer.coordinator.model import RoundRecord, State
from elastic_trainer.coordinator.node_range import as_json as range_as_json
from elastic_trainer.coordinator.progress import SPEED_WINDOW
from elastic_trainer.coordinator.straggler_check import as_json as stragglers_as_json
from elastic_trainer.coordinator.straggler_check import named_count, shares_as_json
from elastic_trainer.failures.record import as_json
from elastic_trainer.metrics.exposition import Metric

LEAST_STEPS = 10
LEAST_SECONDS = 2.0
"""Shorter rounds say too little of the speed at their size."""


def status(state: State, job: str, now: float, wall: float) -> dict[str, Any]:
    """The state as JSON values. `wall` is the Unix time at `now`.

    `connected` names the pods whose agents are there, whether they train or not. `range`, `world`
    and `ranks` count nodes (agents), as rounds are of agents. Times are Unix seconds.
    """
    offset = wall - now
    running = state.round
    return {
        "job": job,
        "round": running.round if running else state.last_round,
        "phase": state.phase.value,
        "term": state.settings.term,
        "host": _host(state),
        "missing": [member.pod_index for member in state.missing],
        "range": range_as_json(state.settings),
        "world": len(running.members) if running else 0,
        "ranks": {str(m.pod_index): rank for rank, m in enumerate(running.members)}
        if running
        else {},
        "connected": sorted(agent.pod_index for agent in state.agents.values()),
        "pids": {str(a.pod_index): list(a.pids) for a in state.agents.values() if a.attached},
        "waiting": sorted(a.pod_index for a in state.agents.values() if a.joined_at is not None),
        "leaving": sorted(a.pod_index for a in state.agents.values() if a.leaving),
        "step": state.step,
        "steps_per_second": _speed(state, now),
        "speeds": {str(size): speed for size, speed in sorted(speeds(state.rounds).items())},
        "committed_step": state.committed_step,
        "progress": progress(state),
        "metrics": dict(state.figures),
        "tables": tables.as_json(state),
        "commits": {one.place: one.step for one in state.commits},
        "commit_bytes": state.commit_bytes or None,
        "rounds": [_round(record, offset) for record in state.rounds],
        "excluded": [
            {
                "node": node,
                "workers": sorted(a.pod_index for a in state.agents.values() if a.node == node),
                "reason": reason,
            }
            for node, reason in sorted(state.excluded.items())
        ],
        "goodput": _goodput(state, now),
        "stragglers": stragglers_as_json(state, offset),
        "shares": shares_as_json(state),
        "batch_seconds": _batch_seconds(state),
        "batch_samples": _batch_samples(state),
        "loads": loads_as_json(state),
        "diverged": diverged_as_json(state, offset),
        "hangs": [hang.as_json(one, offset) for one in state.hangs],
        "failures": [as_json(failed) for failed in state.failures],
        "failures_total": state.failures_total,
        "verdict": state.failure_reason or None,
    }


def _goodput(state: State, now: float) -> dict[str, Any]:
    """Return the job's GPU time by its uses: milliseconds times processes."""
    ledger = ledger_as_of(state, now)
    uses = {use.value: spent for use, spent in ledger.uses().items()}
    return {
        "id": ledger.id,
        "milliseconds": uses,
        "held": ledger.held + ledger.beginning,
        "processes": max((one.processes for one in ledger.accounts.values()), default=0),
    }


def _batch_seconds(state: State) -> dict[str, float] | None:
    """Return the ranks' median seconds for a batch by what they pass in; None: not measured."""
    pace = state.stragglers.pace
    if pace is None:
        return None
    return {
        "compute": round(pace.compute, 6),
        "input": round(pace.input, 6),
        "network": round(pace.network, 6),
    }


def _batch_samples(state: State) -> float | None:
    """Return the ranks' median samples of a batch; None: not measured."""
    pace = state.stragglers.pace
    return None if pace is None else round(pace.samples, 3)


def _host(state: State) -> int | None:
    """Return the pod index of the agent that runs this coordinator; None if none does."""
    host = state.agents.get(state.settings.host)
    return host.pod_index if host is not None else None


def metrics(state: State, now: float) -> list[Metric]:
    """Return the answer to `GET /metrics`."""
    running = state.round
    pauses = [record.pause_seconds for record in state.rounds if record.pause_seconds is not None]
    return [
        Metric("agents", "Agents that are connected.", len(state.agents)),
        Metric("world_nodes", "Nodes of the round.", len(running.members) if running else 0),
        Metric("round", "Number of the newest round.", state.last_round),
        Metric("step", "Newest step that was applied.", max(0, state.step)),
        Metric("committed_step", "Newest step that is committed.", max(0, state.committed_step)),
        Metric("steps_per_second", "Recent speed.", _speed(state, now)),
        Metric("pause_seconds", "Of the newest change of rounds.", pauses[-1] if pauses else 0.0),
        Metric("excluded_nodes", "Nodes that are in no further round.", len(state.excluded)),
        Metric(
            "stragglers",
            "Ranks that are slower by themselves than the others.",
            named_count(state),
        ),
        Metric(
            "stragglers_total",
            "Ranks that were found slower by themselves than the others.",
            state.stragglers.total,
        ),
        Metric(
            "diverged_ranks",
            "Ranks whose state is another than the others'.",
            len(state.replicas.diverged),
        ),
        Metric(
            "diverged_ranks_total",
            "Ranks whose state was found to be another than the others'.",
            state.replicas.total,
        ),
        Metric("hangs_total", "Rounds that were ended as no step came.", state.hangs_total),
        Metric("failures_total", "Workers that failed.", state.failures_total),
        *tables.metrics(state),
        *(
            Metric(
                "gpu_seconds",
                "Time of all processes by use; what a break undoes is no longer training.",
                milliseconds / 1000,
                (("use", use.value),),
            )
            for use, milliseconds in state.ledger.uses(int(now * 1000)).items()
        ),
    ]


def _speed(state: State, now: float) -> float:
    recent = [sample for sample in state.samples if sample[0] > now - SPEED_WINDOW]
    if len(recent) < 2:
        return 0.0
    seconds = recent[-1][0] - recent[0][0]
    return round((recent[-1][1] - recent[0][1]) / seconds, 3) if seconds > 0 else 0.0


def speeds(rounds: Iterable[RoundRecord]) -> dict[int, float]:
    """Samples a second by world, each from the newest round of that world that ran for a while.

    Where the samples of a step aren't known, each node is taken to consume one: then it is steps a
    second times world, which is proportional to samples a second if the batch of a node is fixed.
    """
    found: dict[int, float] = {}
    for record in rounds:
        if record.first_step is None or record.last_step is None:
            continue
        assert record.first_step_time is not None and record.last_step_time is not None
        seconds = record.last_step_time - record.first_step_time
        steps = record.last_step - record.first_step
        if steps < LEAST_STEPS or seconds < LEAST_SECONDS:
            continue
        samples = record.last_samples - record.first_samples if record.first_samples else 0
        found[record.world] = round((samples or steps * record.world) / seconds, 3)
    return found


def progress(state: State) -> dict[str, Any] | None:
    """Return how far training is: samples consumed and in all, of the newest step that was told,
    and the seconds that the rest takes at the speed of this size, null until that was measured.
    None where the script doesn't say how many samples there are."""
    newest = next((r for r in reversed(state.rounds) if r.last_samples), None)
    if newest is None or not state.total_samples:
        return None
    left = max(0, state.total_samples - newest.last_samples)
    speed = speeds(state.rounds).get(newest.world)
    return {
        "samples": newest.last_samples,
        "total": state.total_samples,
        "remaining_seconds": round(left / speed, 1) if speed else None,
    }


def _round(record: RoundRecord, offset: float) -> dict[str, Any]:
    def clock(time: float | None) -> float | None:
        return None if time is None else round(time + offset, 4)

    pause = record.pause_seconds
    return {
        "round": record.round,
        "world": record.world,
        "time": clock(record.time),
        "reason": record.reason,
        "first_step": record.first_step,
        "first_step_time": clock(record.first_step_time),
        "last_step": record.last_step,
        "last_step_time": clock(record.last_step_time),
        "end": record.end,
        "end_time": clock(record.end_time),
        "lost": record.lost,
        "pause_seconds": None if pause is None else round(pause, 4),
    }
