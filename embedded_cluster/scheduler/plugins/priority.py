"""Higher priority first; with its filter on, only lower priorities are evicted."""

from __future__ import annotations

from collections.abc import Sequence

from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Job, Task, TaskStatus
from volcano_elastic.scheduler_conf.configuration import PluginOption


def priority(session: Session, option: PluginOption) -> Functions:
    def starving(job: Job) -> bool:
        waiting = session.count(job, TaskStatus.PIPELINED)
        return session.ready_members(job) + waiting < len(job.tasks)

    def lower(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        job = session.job_of(claimant)
        return [
            task
            for task in candidates
            if (
                task.priority < claimant.priority
                if task.job == claimant.job
                else session.job_of(task).priority < job.priority
            )
        ]

    return Functions(
        job_order=lambda job: -job.priority,
        task_order=lambda task: -task.priority,
        job_starving=starving,
        preemptable=lower,
    )
