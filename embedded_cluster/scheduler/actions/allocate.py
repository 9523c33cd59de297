"""Places pods: all of a gang's minimum at once, then one pod a turn."""

from __future__ import annotations

from collections import deque

from embedded_cluster.scheduler.actions.turns import Turns
from embedded_cluster.scheduler.session import Session, Statement
from embedded_cluster.scheduler.snapshot import Job, Task


def allocate(session: Session) -> None:
    if not session.enqueues:
        for key, phase in session.phase.items():
            session.phase[key] = "Inqueue" if phase == "Pending" else phase
    jobs = session.jobs_to_place()
    for alone in sorted((job for job in jobs if job.queue is None), key=session.job_key):
        _turn(session, alone, deque(session.pending(alone)), set())
    waiting = {
        job.key: deque(task for task in session.pending(job) if not task.best_effort)
        for job in jobs
        if job.queue is not None
    }
    failed: dict[str, set[str]] = {key: set() for key in waiting}
    turns = Turns(session, [job for job in jobs if waiting.get(job.key)], skip_overused=True)
    while job := turns.take():
        committed = _turn(session, job, waiting[job.key], failed[job.key])
        if committed and waiting[job.key]:
            turns.put_back(job)


def _turn(session: Session, job: Job, tasks: deque[Task], failed: set[str]) -> bool:
    """Takes from `tasks` until the job is ready, or none is left.

    `failed`: roles of which a pod found no place, so that no other of them is tried, as in Volcano.
    """
    statement = Statement(session)
    queue = session.queues[job.queue] if job.queue else None
    while tasks:
        task = tasks.popleft()
        if queue and (why := session.not_allocatable(queue, task)):
            session.reasons[task.uid] = why
            continue
        if task.role and task.role in failed:
            session.reasons[task.uid] = session.ranking(task).why_none()
            continue
        best = session.ranking(task).best()
        if best is None:
            session.reasons[task.uid] = session.ranking(task).why_none()
            failed.add(task.role)
            continue
        node, now = best
        if now:
            statement.allocate(task, node)
        else:
            statement.pipeline(task, node)
        if session.job_ready(job):
            break
    if session.job_ready(job):
        statement.commit()
        return True
    if not session.job_pipelined(job):
        statement.discard()
    # Else what the gang waits for stays set aside until the session ends, but nothing binds.
    return False
