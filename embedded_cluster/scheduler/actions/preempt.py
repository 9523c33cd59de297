"""A starving gang takes room from other jobs of its own queue, then from its own lesser pods."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from embedded_cluster.scheduler.actions.room import claim, make_room, starving
from embedded_cluster.scheduler.session import Session, Statement
from embedded_cluster.scheduler.snapshot import Job, Task, TaskStatus

_EVICTABLE = (TaskStatus.BOUND, TaskStatus.RUNNING)


def preempt(session: Session) -> None:
    def place(job: Job) -> tuple[object, ...]:
        return session.queue_key(session.queues[job.queue or ""]), session.job_key(job)

    jobs = sorted(starving(session), key=place)
    for _, of_queue in groupby(jobs, key=lambda job: job.queue):
        of_one_queue = list(of_queue)
        for job in of_one_queue:
            claim(session, job, partial(_make_room, own=False))
        for job in of_one_queue:
            for task in session.pending(job):
                statement = Statement(session)
                if not _make_room(statement, task, own=True):
                    break
                statement.commit()


def _make_room(statement: Statement, task: Task, *, own: bool) -> bool:
    session = statement.session
    queue = session.queue_of(task)

    def may_go(victim: Task) -> bool:
        return (
            (victim.job == task.job) is own
            and session.job_of(victim).queue == queue.name
            and session.status(victim) in _EVICTABLE
            and (victim.best_effort or not task.best_effort)
        )

    nodes = session.ranking(task).nodes() if task.preempts else ()

    def allowed() -> bool:
        return session.not_allocatable(queue, task) is None

    return make_room(statement, "preemptable", task, nodes, may_go, allowed)
