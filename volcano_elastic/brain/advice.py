"""Recommends resources to a job, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import checkpoint_size, moment, role_resources
from volcano_elastic.api.role_resources import RoleResources
from volcano_elastic.brain import served_job
from volcano_elastic.brain.estimate.amounts import NOTHING, Amounts, Limits, within
from volcano_elastic.brain.estimate.right_size import (
    MARGIN,
    margin_of_memory,
    right_size,
    unknown_memory,
)
from volcano_elastic.brain.estimate.tuning import nearly_full
from volcano_elastic.brain.estimate.while_running import WAIT
from volcano_elastic.brain.history.run import PodLoad, Run
from volcano_elastic.brain.job_load import SERVING
from volcano_elastic.brain.observation import has_pods, pod_specs, requested
from volcano_elastic.brain.past import Past
from volcano_elastic.pytorchjob.at_start import RECOMMENDATION
from volcano_elastic.pytorchjob.server_scaling import FULL

_NEAR = 0.1
"""A request that is so near to the recommended one, in CPU and memory, stays as it is."""
_STEADY = 10
_AND_MARGIN = f"and {round((MARGIN - 1) * 100)} %"


def _percent(margin: float) -> str:
    return f"{round((margin - 1) * 100)} %"


@dataclass(frozen=True, slots=True)
class Advice:
    role: str
    asked: Amounts
    wanted: Amounts
    why: str

    def __str__(self) -> str:
        return f"{self.role} pods ask for {self.asked}; {self.wanted} would do: {self.why}"


def recommendation(advice: Sequence[Advice], now: datetime) -> dict[str, Any]:
    """Return it as status.elastic.recommendation has it; empty roles where nothing is to be
    recommended, so that nobody waits for more."""
    roles = {
        one.role: RoleResources(one.wanted.cpu, one.wanted.memory, one.why).as_status()
        for one in advice
    }
    return {"time": moment.timestamp(now), "roles": roles}


@dataclass(frozen=True, slots=True)
class Unknown:
    """The memory that jobs begin with that too few runs are like."""

    factor: float
    """How many times what they ask for."""
    node: Amounts
    """The one with the least memory for each CPU."""


def advise(
    job: Mapping[str, Any],
    this: Run,
    past: Past,
    node: Amounts | None,
    unknown: Unknown | None = None,
) -> list[Advice]:
    """Return what the job's pods should ask for by earlier runs like it, where that differs.

    Jobs with parameter servers by D2's figures, others by `right_size`.

    Args:
        node: most that a node can give; None: not known.
        unknown: None: without runs like it nothing is said of memory.
    """
    if served_job.is_served(job):
        return _advise_served(job, this, past, node)
    found = []
    used = this.busiest
    for role, spec in pod_specs(job).items():
        alike = past.similar(this, role)
        asked = requested(spec)
        margin = margin_of_memory(
            len(alike.runs), close=alike.is_close, same_image=alike.same_image
        )
        limits = Limits(used.get(role, NOTHING), node)
        wanted = right_size([run.busiest[role] for run in alike.runs], limits, margin)
        why = f"{alike.explained()}, {_AND_MARGIN}; of memory p99 and {_percent(margin)}"
        if not alike.is_close:
            least = asked.memory
            if unknown is not None and asked.cpu and asked.memory:
                least = unknown_memory(asked, unknown.factor, unknown.node)
            if wanted is None and least > asked.memory:
                wanted = within(asked, limits)
                why = f"{alike.explained()}: more memory until its own pods are measured"
            if wanted is not None:
                wanted = within(replace(wanted, memory=max(wanted.memory, least)), limits)
        if wanted is not None and not _is_near(asked, wanted):
            found.append(Advice(role, asked, wanted, why))
    return found


def _advise_served(
    job: Mapping[str, Any], this: Run, past: Past, node: Amounts | None
) -> list[Advice]:
    alike = past.similar(this, SERVING)
    annotations, status = job["metadata"].get("annotations") or {}, job.get("status") or {}
    # Rows of servers that run are what the job has got to, not what it begins with.
    checkpoint = checkpoint_size.of_servers(annotations, {} if has_pods(job) else status)
    if checkpoint is None and alike.is_close:
        # Of the newest that told one: the job goes on where it ended, or grows to as much.
        told = (run.checkpoint for run in reversed(alike.runs) if run.checkpoint is not None)
        checkpoint = next(told, None)
    specs, found = pod_specs(job), []
    loads = [run.load for run in alike.runs]
    for role, wanted in served_job.at_start(job, loads, node, checkpoint).items():
        asked = requested(specs[role])
        wanted = within(wanted, Limits(this.busiest.get(role, NOTHING), node))
        if not _is_near(asked, wanted):
            words = []
            if alike.runs:
                words.append(alike.explained("totals and greatest"))
            if checkpoint is not None and role == SERVING:
                words.append(f"a checkpoint of {checkpoint} fills them by {FULL:.0%}")
            none = f"{alike.explained()}, and they ask for nothing"
            found.append(Advice(role, asked, wanted, "; ".join(words) or none))
    return found


def advise_running(
    job: Mapping[str, Any],
    run: Run,
    node: Amounts | None,
    now: datetime,
    wait: timedelta = timedelta(seconds=WAIT.seconds),
) -> list[Advice]:
    """Return what a running job's pods should ask for by what they use, where that differs from
    what was recommended last, else from what they ask for.

    Args:
        node: as for `advise`.
        wait: how long pods of a role are measured first; ten times that before they are to ask for
            less memory, since evaluations and saves take more of it than steps do.
    """
    found = []
    status = (job.get("status") or {}).get("elastic") or {}
    told = role_resources.read((status.get(RECOMMENDATION) or {}).get("roles"))
    for role, busiest in run.busiest.items():
        loads = [load for load in run.loads if load.role == role]
        measured = now - min(load.cpu.since for load in loads)
        if measured < wait:
            continue
        wanted = right_size([busiest], Limits(busiest, node))
        last = told.get(role)
        asked = loads[0].requested if last is None else Amounts(last.cpu, last.memory)
        if wanted is not None and measured < _STEADY * wait:
            wanted = replace(wanted, memory=max(wanted.memory, asked.memory))
        if wanted is not None and (
            not _is_near(asked, wanted)
            or (wanted.memory > asked.memory and any(_is_nearly_full(load) for load in loads))
        ):
            minutes = max(1, round(measured.total_seconds() / 60))
            why = f"p95 of CPU and peak of memory of its busiest pod in {minutes} min"
            why += f", {_AND_MARGIN}"
            found.append(Advice(role, asked, wanted, why))
    return found


def _is_nearly_full(load: PodLoad) -> bool:
    held = [sample.used.memory for sample in load.latest]
    return bool(load.requested.memory) and nearly_full(held, load.requested.memory)


def _is_near(asked: Amounts, wanted: Amounts) -> bool:
    pairs = ((asked.cpu.count, wanted.cpu.count), (asked.memory.count, wanted.memory.count))
    return all(abs(one - other) <= _NEAR * other for one, other in pairs)
