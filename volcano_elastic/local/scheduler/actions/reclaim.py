"""A starving gang takes back what other queues borrowed."""

from __future__ import annotations

from functools import partial

from volcano_elastic.local.scheduler.actions.turns import Turns
from volcano_elastic.local.scheduler.resources import fits
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Node, Queue, Task, TaskStatus


def reclaim(session: Session) -> None:
    jobs = [job for job in session.jobs_to_place() if job.queue and session.job_starving(job)]
    turns = Turns(session, jobs, skip_overused=True)
    while job := turns.take():
        _for_job(session, session.queues[job.queue or ""], job)


def _for_job(session: Session, queue: Queue, job: Job) -> None:
    statement = Statement(session)
    for task in session.pending(job):
        if not session.job_starving(job):
            break
        if task.preempts and session.preemptive(queue, task):
            _make_room(session, statement, queue, task)
    if session.job_pipelined(job):
        statement.commit()
    else:
        statement.discard()


def _make_room(session: Session, statement: Statement, queue: Queue, task: Task) -> None:
    """Pipelines `task` on a node where its victims leave it room; Volcano takes any such node, here
    one where nobody has to go comes first. A node without anybody to take from is none."""

    def has_room(node: Node) -> bool:
        return fits(task.requests, session.future_idle(node))

    for node in sorted(session.ranking(task).nodes(), key=has_room, reverse=True):
        candidates = [v for v in session.tasks_on(node) if _takeable(session, queue, v)]
        if candidates and statement.make_room(
            "reclaimable", task, node, candidates, partial(has_room, node)
        ):
            return


def _takeable(session: Session, queue: Queue, victim: Task) -> bool:
    owner: Job = session.jobs[victim.job or ""]
    its = session.queues.get(owner.queue or "")
    others = its is not None and its is not queue and its.reclaimable
    return others and victim.preemptable and session.status(victim) is TaskStatus.RUNNING
