"""A starving gang takes room from other jobs of its own queue, then from its own lesser pods."""

from __future__ import annotations

from volcano_elastic.local.scheduler.actions.make_room import make_room
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Task, TaskStatus

_TAKEABLE = (TaskStatus.BOUND, TaskStatus.RUNNING)


def preempt(session: Session) -> None:
    for job in sorted(session.placeable_jobs(), key=session.job_key):
        if job.queue is not None and session.job_starving(job):
            _from_other_jobs(session, job)
            _from_its_own(session, job)


def _from_other_jobs(session: Session, job: Job) -> None:
    def may_go(victim: Task) -> bool:
        other = session.jobs[victim.job or ""]
        return _takeable(session, victim) and other is not job and other.queue == job.queue

    statement = Statement(session)
    for task in session.pending(job):
        if not session.job_starving(job):
            break
        make_room(session, statement, task, "preemptable", may_go)
    if session.job_pipelined(job):
        statement.commit()
    else:
        statement.discard()


def _from_its_own(session: Session, job: Job) -> None:
    for task in session.pending(job):
        if not session.job_starving(job):
            return
        priority = task.priority

        def may_go(victim: Task, priority: int = priority) -> bool:
            lesser = victim.job == job.key and victim.priority < priority
            return lesser and _takeable(session, victim)

        statement = Statement(session)
        make_room(session, statement, task, "preemptable", may_go)
        statement.commit()


def _takeable(session: Session, victim: Task) -> bool:
    return session.status(victim) in _TAKEABLE and victim.preemptable
