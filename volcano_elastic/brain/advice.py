"""Recommends resources to a job, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment, role_resources
from volcano_elastic.api.role_resources import RoleResources
from volcano_elastic.brain.estimate.amounts import NOTHING, Amounts, Limits
from volcano_elastic.brain.estimate.right_size import MARGIN, right_size
from volcano_elastic.brain.estimate.similarity import similar
from volcano_elastic.brain.estimate.while_running import WAIT
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.observation import pod_specs, requested
from volcano_elastic.pytorchjob.at_start import RECOMMENDATION

_NEAR = 0.1
"""A request that is so near to the recommended one, in CPU and memory, stays as it is."""


@dataclass(frozen=True, slots=True)
class Advice:
    role: str
    asked: Amounts
    wanted: Amounts
    reason: str

    def __str__(self) -> str:
        return f"{self.role} pods ask for {self.asked}; {self.wanted} would do: {self.why}"

    @property
    def why(self) -> str:
        return f"{self.reason}, and {round((MARGIN - 1) * 100)} %"


def recommendation(advice: Sequence[Advice], now: datetime) -> dict[str, Any]:
    """Return it as status.elastic.recommendation has it; empty roles where nothing is to be
    recommended, so that nobody waits for more."""
    roles = {
        one.role: RoleResources(one.wanted.cpu, one.wanted.memory, one.why).as_status()
        for one in advice
    }
    return {"time": moment.timestamp(now), "roles": roles}


def advise(
    job: Mapping[str, Any], this: Run, runs: Sequence[Run], node: Amounts | None
) -> list[Advice]:
    """Return what the job's pods should ask for by earlier runs like it, where that differs.

    Args:
        runs: ended ones of any jobs.
        node: most that a node can give; None: not known.
    """
    found = []
    used = this.busiest
    for role, spec in pod_specs(job).items():
        alike = similar(this, [r for r in runs if r.uid != this.uid and role in r.busiest])
        wanted = right_size(
            [run.busiest[role] for run in alike.runs], Limits(used.get(role, NOTHING), node)
        )
        asked = requested(spec)
        if wanted is not None and not _is_near(asked, wanted):
            found.append(Advice(role, asked, wanted, alike.explained()))
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
        wait: how long pods of a role are measured first.
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
        if wanted is not None and not _is_near(asked, wanted):
            minutes = max(1, round(measured.total_seconds() / 60))
            why = f"p95 of CPU and peak of memory of its busiest pod in {minutes} min"
            found.append(Advice(role, asked, wanted, why))
    return found


def _is_near(asked: Amounts, wanted: Amounts) -> bool:
    pairs = ((asked.cpu.count, wanted.cpu.count), (asked.memory.count, wanted.memory.count))
    return all(abs(one - other) <= _NEAR * other for one, other in pairs)
