"""A starving gang takes back what other queues borrowed."""

from __future__ import annotations

from volcano_elastic.local.scheduler.actions.make_room import make_room
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Task, TaskStatus


def reclaim(session: Session) -> None:
    jobs = [job for job in session.placeable_jobs() if job.queue and session.job_starving(job)]
    for job in sorted(jobs, key=lambda j: (session.queue_place(j), session.job_key(j))):
        queue = session.queues[job.queue or ""]
        statement = Statement(session)
        for task in session.pending(job):
            if not session.job_starving(job) or session.overused(queue):
                break
            if session.preemptive(queue, task):
                make_room(
                    session,
                    statement,
                    task,
                    "reclaimable",
                    lambda v, j=job: _borrows(session, j, v),
                )
        if session.job_pipelined(job):
            statement.commit()
        else:
            statement.discard()


def _borrows(session: Session, job: Job, victim: Task) -> bool:
    queue = session.queues.get(session.jobs[victim.job or ""].queue or "")
    return (
        session.status(victim) is TaskStatus.RUNNING
        and victim.preemptable
        and queue is not None
        and queue.name != job.queue
        and queue.reclaimable
    )
