"""A starving gang takes room from other jobs of its own queue, then from its own lesser pods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby

from volcano_elastic.local.scheduler.resources import fits
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Node, Queue, Task, TaskStatus

_EVICTABLE = (TaskStatus.BOUND, TaskStatus.RUNNING)


def preempt(session: Session) -> None:
    jobs = [job for job in session.jobs_to_place() if job.queue and session.job_starving(job)]

    def place(job: Job) -> tuple[object, ...]:
        return session.queue_key(session.queues[job.queue or ""])

    jobs.sort(key=lambda job: (place(job), session.job_key(job)))
    for name, of_queue in groupby(jobs, key=lambda job: job.queue or ""):
        starving = list(of_queue)
        for job in starving:
            _from_other_jobs(session, session.queues[name], job)
        for job in starving:
            _from_its_own(session, session.queues[name], job)


def _from_other_jobs(session: Session, queue: Queue, job: Job) -> None:
    def may_go(victim: Task) -> bool:
        return victim.job != job.key and session.jobs[victim.job or ""].queue == queue.name

    statement = Statement(session)
    for task in session.pending(job):
        if not session.job_starving(job):
            break
        _make_room(session, statement, queue, task, may_go)
    if session.job_pipelined(job):
        statement.commit()
    else:
        statement.discard()


def _from_its_own(session: Session, queue: Queue, job: Job) -> None:
    for task in session.pending(job):
        statement = Statement(session)
        if not _make_room(session, statement, queue, task, lambda v: v.job == job.key):
            return
        statement.commit()


def _make_room(
    session: Session,
    statement: Statement,
    queue: Queue,
    task: Task,
    may_go: Callable[[Task], bool],
) -> bool:
    """Pipelines `task` on the best node that has room for it once its victims there have gone.

    Changes nothing and returns False if there is none.
    """
    for node in session.ranking(task).nodes() if task.preempts else ():
        candidates = [
            victim
            for victim in session.tasks_on(node)
            if session.status(victim) in _EVICTABLE
            and victim.preemptable
            and (victim.best_effort or not task.best_effort)
            and may_go(victim)
        ]
        has_room = partial(_has_room, session, queue, task, node)
        if statement.make_room("preemptable", task, node, candidates, has_room):
            return True
    return False


def _has_room(session: Session, queue: Queue, task: Task, node: Node) -> bool:
    allowed = session.not_allocatable(queue, task) is None
    return allowed and fits(task.requests, session.future_idle(node))
