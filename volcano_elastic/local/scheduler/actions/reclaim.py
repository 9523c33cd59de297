"""A starving gang takes back what other queues borrowed."""

from __future__ import annotations

from volcano_elastic.local.scheduler.actions.make_room import make_room
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Task, TaskStatus


def reclaim(session: Session) -> None:
    jobs = [job for job in session.placeable_jobs() if job.queue and session.job_starving(job)]
    for job in sorted(jobs, key=lambda j: (session.queue_place(j), session.job_key(j))):
        _for_job(session, job)


def _for_job(session: Session, job: Job) -> None:
    mine = session.queues[job.queue or ""]

    def may_go(victim: Task) -> bool:
        queue = session.queues.get(session.jobs[victim.job or ""].queue or "")
        running = session.status(victim) is TaskStatus.RUNNING
        others = queue is not None and queue is not mine and queue.reclaimable
        return others and running and victim.preemptable

    statement = Statement(session)
    for task in session.pending(job):
        if not session.job_starving(job) or session.overused(mine):
            break
        if session.preemptive(mine, task):
            make_room(session, statement, task, "reclaimable", may_go)
    if session.job_pipelined(job):
        statement.commit()
    else:
        statement.discard()
