"""A gang's minimum: all of it or nothing, and nobody takes from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import READY, Job, Task, TaskStatus
from volcano_elastic.scheduler_conf.configuration import PluginOption

_PLACED = (*READY, TaskStatus.PIPELINED)
_VALID = (*_PLACED, TaskStatus.PENDING)


def gang(session: Session, option: PluginOption) -> Functions:
    def valid(job: Job) -> str | None:
        if role := _short_role(session, job, _VALID):
            return f"fewer pods of role {role} than minTaskMember asks for"
        if (found := session.count(job, *_VALID)) < job.min_member:
            return (
                f"Not enough valid tasks for gang-scheduling, valid: {found}, min: {job.min_member}"
            )
        return None

    def enough(job: Job, statuses: Sequence[TaskStatus]) -> bool:
        members = session.count(job, *statuses) + session.backfillable(job)
        return members >= job.min_member and not _short_role(session, job, statuses, idle=True)

    def surplus(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        # Volcano picks these in the order of map iteration, so at random; here they go in victim
        # order, highest index first, so that what a test sees is what happens again.
        spare: Counter[str] = Counter()
        victims = []
        for task in candidates:
            job = session.job_of(task)
            spare[job.key] += 1
            if spare[job.key] <= session.ready_members(job) - job.min_member:
                victims.append(task)
        return victims

    return Functions(
        job_valid=valid,
        job_order=session.is_ready,
        job_ready=lambda job: enough(job, tuple(READY)),
        job_pipelined=lambda job: enough(job, _PLACED),
        job_starving=lambda job: session.count(job, *_PLACED) < job.min_member,
        preemptable=surplus,
        reclaimable=surplus,
    )


def _short_role(
    session: Session, job: Job, statuses: Sequence[TaskStatus], *, idle: bool = False
) -> str | None:
    """Return a role with fewer pods than minTaskMember asks for; `idle` counts pending pods that
    ask for nothing, too."""
    # As Volcano: a minMember below the sum of roles switches the check by role off.
    if not job.min_task_member or job.min_member < sum(job.min_task_member.values()):
        return None
    roles = Counter(task.role for task in session.tasks(job, *statuses))
    if idle:
        waiting = session.tasks(job, TaskStatus.PENDING)
        roles.update(task.role for task in waiting if task.best_effort)
    return next((r for r, least in job.min_task_member.items() if roles[r] < least), None)
