"""All of minMember or nothing, and nobody is evicted below it."""

from __future__ import annotations

from collections.abc import Sequence

from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import READY, Job, Task, TaskStatus

_VALID = READY | {TaskStatus.PENDING, TaskStatus.PIPELINED}


def gang(session: Session, option: PluginOption) -> Functions:
    def enough(job: Job, statuses: frozenset[TaskStatus]) -> bool:
        tasks = session.tasks(job, statuses)
        return len(tasks) >= job.min_member and not _short_role(job, tasks)

    def valid(job: Job) -> tuple[str, str] | None:
        tasks = session.tasks(job, _VALID)
        if len(tasks) < job.min_member:
            return "NotEnoughTasks", f"{len(tasks)} pods can run, minMember is {job.min_member}"
        if role := _short_role(job, tasks):
            return "NotEnoughPodsOfTask", f"fewer pods of role {role} than minTaskMember asks for"
        return None

    def pipelined(job: Job) -> bool:
        return enough(job, READY | {TaskStatus.PIPELINED})

    def surplus(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        # Volcano picks these in the order of map iteration, so at random; here they go in victim
        # order, highest index first, so that what a test sees is what happens again.
        spare: dict[str, int] = {}
        victims = []
        for task in candidates:
            job = session.jobs[task.job or ""]
            left = spare.setdefault(job.key, session.ready_members(job) - job.min_member)
            if left > 0:
                spare[job.key] = left - 1
                victims.append(task)
        return victims

    return Functions(
        job_valid=valid,
        job_order=lambda job: float(enough(job, READY)),
        job_ready=lambda job: enough(job, READY),
        job_pipelined=pipelined,
        job_starving=lambda job: not pipelined(job),
        preemptable=surplus,
        reclaimable=surplus,
    )


def _short_role(job: Job, tasks: Sequence[Task]) -> str | None:
    # As Volcano: a minMember below the sum of roles switches the check by role off.
    if job.min_member < sum(job.min_task_member.values()):
        return None
    for role, least in job.min_task_member.items():
        if sum(task.role == role for task in tasks) < least:
            return role
    return None
