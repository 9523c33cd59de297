"""A starving gang takes room from other jobs of its own queue, then from its own lesser pods."""

from __future__ import annotations

from volcano_elastic.local.scheduler.actions.make_room import make_room
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Task, TaskStatus

_TAKEABLE = (TaskStatus.BOUND, TaskStatus.RUNNING)


def preempt(session: Session) -> None:
    for job in sorted(session.placeable_jobs(), key=session.job_key):
        if job.queue is None or not session.job_starving(job):
            continue
        statement = Statement(session)
        for task in session.pending(job):
            if not session.job_starving(job):
                break
            make_room(
                session, statement, task, "preemptable", lambda v, j=job: _other_job(session, j, v)
            )
        if session.job_pipelined(job):
            statement.commit()
        else:
            statement.discard()
        _within(session, job)


def _within(session: Session, job: Job) -> None:
    for task in session.pending(job):
        if not session.job_starving(job):
            return
        statement = Statement(session)
        make_room(session, statement, task, "preemptable", lambda v, t=task: _lesser(session, t, v))
        statement.commit()


def _other_job(session: Session, job: Job, victim: Task) -> bool:
    other = session.jobs[victim.job or ""]
    takeable = session.status(victim) in _TAKEABLE and victim.preemptable
    return takeable and other.key != job.key and other.queue == job.queue


def _lesser(session: Session, task: Task, victim: Task) -> bool:
    takeable = session.status(victim) in _TAKEABLE and victim.preemptable
    return takeable and victim.job == task.job and victim.priority < task.priority
