"""Places pods: all of a gang's minimum at once, then one pod a turn."""

from __future__ import annotations

from volcano_elastic.local.scheduler.resources import Resources
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Job, Node, Queue, Task


def allocate(session: Session) -> None:
    _default_scheduler(session)
    if not session.enqueues():
        for key, phase in session.phase.items():
            session.phase[key] = "Inqueue" if phase == "Pending" else phase
    waiting: dict[str, dict[str, list[Task]]] = {}
    for job in session.placeable_jobs():
        if job.queue and (tasks := session.pending(job)):
            waiting.setdefault(job.queue, {})[job.key] = tasks
    while waiting:
        queue = min((session.queues[name] for name in waiting), key=session.queue_key)
        jobs = waiting[queue.name]
        if not jobs or session.overused(queue):
            for tasks in jobs.values():
                for task in tasks:
                    session.reasons[task.uid] = f"queue {queue.name} has all that it deserves"
            del waiting[queue.name]
            continue
        job = min((session.jobs[key] for key in jobs), key=session.job_key)
        _turn(session, queue, job, jobs[job.key])
        if not jobs[job.key]:
            del jobs[job.key]


def _turn(session: Session, queue: Queue, job: Job, tasks: list[Task]) -> None:
    """Takes from `tasks` until the job is ready, or none is left."""
    statement = Statement(session)
    while tasks:
        task = tasks.pop(0)
        if not session.allocatable(queue, task):
            session.reasons[task.uid] = f"queue {queue.name} may not hold more"
            continue
        if node := session.place(task, lambda n: _now_and_later(session, n)):
            statement.allocate(task, node)
        elif node := session.place(task, session.future_idle):
            statement.pipeline(task, node)
        else:
            continue
        if session.job_ready(job):
            break
    if session.job_ready(job):
        statement.commit()
    elif not session.job_pipelined(job):
        statement.discard()
    # Else what the gang waits for stays set aside until the session ends, but nothing binds.


def _now_and_later(session: Session, node: Node) -> Resources:
    """Idle now and not promised to who waits for what is leaving; Volcano looks at idle alone, and
    so lets a small pod take the room that a large one waits for."""
    idle, future = session.idle(node), session.future_idle(node)
    return {name: min(amount, future.get(name, 0)) for name, amount in idle.items()}


def _default_scheduler(session: Session) -> None:
    """Pods outside of all queues, one by one."""
    free = [job for job in session.placeable_jobs() if job.queue is None]
    for job in sorted(free, key=session.job_key):
        for task in session.pending(job):
            if node := session.place(task, lambda n: _now_and_later(session, n)):
                statement = Statement(session)
                statement.allocate(task, node)
                statement.commit()
