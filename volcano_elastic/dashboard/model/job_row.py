"""Jobs and gangs as the page lists them: size, state and why; chosen, ordered and cut in pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.cluster_state.reason import WORDS
from volcano_elastic.dashboard.model.gpu_use import PodCount, Workers, target
from volcano_elastic.queue_policy.decision import Decision, Plan
from volcano_elastic.snapshot.snapshot import Gang, Job, Snapshot

PAGE = 50
_LONGEST_WHY = 300
_NO_WORKERS = Workers()
_WAITS = "it waits for room for its minimum"


class State(StrEnum):
    """State of a job, as the page has it."""

    WAITING = "Waiting"
    """Its minimum has no room."""
    GROWING = "Growing"
    """It runs, and more pods of it are on their way."""
    SHRINKING = "Shrinking"
    RUNNING = "Running"


@dataclass(frozen=True, slots=True)
class JobRow:
    job: str
    queue: str
    state: State
    created: datetime
    min: int
    max: int
    size: int
    bound: int
    """Workers that have a node."""
    running: int
    held: int
    """Amount that its pods hold, in thousandths of the resource."""
    wanted: int
    """Amount that it lacks to the size that it would have if there were room."""
    priority: int
    why: str
    """Why it waits, or has no more; empty for gangs that run."""
    reason: str
    """The code of it; `Blocked` where no room can be made."""
    gang: bool = False
    """No PyTorchJob of ours: Volcano's alone."""

    def shown(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "queue": self.queue,
            "state": str(self.state),
            "created": moment.timestamp(self.created),
            "min": self.min,
            "max": self.max,
            "size": self.size,
            "bound": self.bound,
            "running": self.running,
            "held": self.held / 1000,
            "wanted": self.wanted / 1000,
            "priority": self.priority,
            "why": self.why,
            "reason": self.reason,
            "gang": self.gang,
        }


def job_rows(snapshot: Snapshot, plan: Plan, counts: PodCount, resource: str) -> tuple[JobRow, ...]:
    """Return a row for each job, and for each gang of others that waits."""
    decisions = {decision.job: decision for decision in plan.decisions}
    sizes = {key: d.new for key, d in decisions.items() if not d.dry_run}
    rows = [
        _job(job, plan, decisions.get(job.key), sizes, counts.jobs.get(job.key), resource)
        for job in snapshot.jobs
    ]
    rows += [
        _gang(gang, plan, counts.gangs[gang.key], resource)
        for gang in snapshot.gangs
        if gang.key in counts.gangs
    ]
    return tuple(rows)


def _job(
    job: Job,
    plan: Plan,
    decision: Decision | None,
    sizes: Mapping[str, int],
    workers: Workers | None,
    resource: str,
) -> JobRow:
    workers = workers or _NO_WORKERS
    there = workers.bound + job.succeeded
    reason, why = _why(job, plan, decision, waits=there < job.min)
    if there < job.min:
        state = State.WAITING
    elif there < job.desired:
        state = State.GROWING
    elif there > job.desired:
        state = State.SHRINKING
    else:
        state = State.RUNNING
    lacks = max(0, target(job, plan, sizes) - there)
    return JobRow(
        job=job.key,
        queue=job.queue,
        state=state,
        created=job.created,
        min=job.min,
        max=job.max,
        size=job.desired,
        bound=workers.bound,
        running=workers.running,
        held=workers.held,
        wanted=lacks * job.pod_requests.get(resource, 0),
        priority=job.priority,
        why=why[:_LONGEST_WHY],
        reason=reason,
    )


def _why(job: Job, plan: Plan, decision: Decision | None, *, waits: bool) -> tuple[str, str]:
    """Return the code and the words for why a job has no more than it has."""
    if job.key in plan.blocked:
        return "Blocked", plan.blocked[job.key]
    if decision is not None:
        dry = " (dry run: not carried out)" if decision.dry_run else ""
        return str(decision.reason), f"→ {decision.new}: {decision.message}{dry}"
    if waits:
        return "WaitingForMinimum", _WAITS
    stay = plan.unchanged.get(job.key)
    if stay is None:
        return "Rigid", "its size is fixed"
    return str(stay.why_not_more), WORDS[stay.why_not_more]


def _gang(gang: Gang, plan: Plan, waiting: tuple[int, int], resource: str) -> JobRow:
    pods, asked = waiting
    return JobRow(
        job=gang.key,
        queue=gang.queue,
        state=State.WAITING,
        created=gang.created,
        min=gang.min_member,
        max=gang.min_member,
        size=pods,
        bound=0,
        running=0,
        held=0,
        wanted=asked,
        priority=gang.priority,
        why=plan.blocked.get(gang.key, _WAITS)[:_LONGEST_WHY],
        reason="Blocked" if gang.key in plan.blocked else "WaitingForMinimum",
        gang=True,
    )


class Sort(StrEnum):
    """By what jobs are ordered; equal ones by name."""

    WAITING = "waiting"
    """Those that wait first, the longest first; then those that want most."""
    NAME = "name"
    NEWEST = "newest"
    HELD = "held"
    WANTED = "wanted"


_KEYS: Mapping[Sort, Any] = {
    Sort.WAITING: lambda row: (
        row.state is not State.WAITING,
        row.created.timestamp() if row.state is State.WAITING else -row.wanted,
    ),
    Sort.NAME: lambda row: (),
    Sort.NEWEST: lambda row: (-row.created.timestamp(),),
    Sort.HELD: lambda row: (-row.held,),
    Sort.WANTED: lambda row: (-row.wanted,),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of jobs that a viewer makes."""

    queues: frozenset[str] | None = None
    """None: all."""
    state: State | None = None
    text: str = ""
    """Part of the key."""
    sort: Sort = Sort.WAITING
    page: int = 1


def chosen(rows: Iterable[JobRow], choice: Choice) -> dict[str, Any]:
    """Return one page: the last one where there are fewer than asked for."""
    text = choice.text.lower()
    found = [
        row
        for row in rows
        if (choice.queues is None or row.queue in choice.queues)
        and (choice.state is None or row.state is choice.state)
        and (not text or text in row.job.lower())
    ]
    return paged(ordered(found, choice.sort), choice.page)


def ordered(rows: Iterable[JobRow], sort: Sort) -> list[JobRow]:
    key = _KEYS[sort]
    return sorted(rows, key=lambda row: (*key(row), row.job))


def paged(rows: Sequence[Any], page: int) -> dict[str, Any]:
    """Return the rows of a page as JSON, with how many pages there are."""
    pages = max(1, math.ceil(len(rows) / PAGE))
    page = min(max(1, page), pages)
    return {
        "total": len(rows),
        "page": page,
        "pages": pages,
        "rows": [row.shown() for row in rows[(page - 1) * PAGE : page * PAGE]],
    }
