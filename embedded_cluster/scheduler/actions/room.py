"""Makes room for a starving gang that others hold: preempt and reclaim differ in whose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from embedded_cluster.scheduler.resources import fits, with_all
from embedded_cluster.scheduler.session import Session, Statement
from embedded_cluster.scheduler.snapshot import Job, Node, Task


def starving(session: Session) -> list[Job]:
    return [job for job in session.jobs_to_place() if job.queue and session.job_starving(job)]


def claim(session: Session, job: Job, make_room: Callable[[Statement, Task], object]) -> None:
    """Makes room for one pod after another while the job starves; all or nothing."""
    statement = Statement(session)
    for task in session.pending(job):
        if not session.job_starving(job):
            break
        make_room(statement, task)
    if session.job_pipelined(job):
        statement.commit()
    else:
        statement.discard()


def make_room(
    statement: Statement,
    kind: Literal["preemptable", "reclaimable"],
    task: Task,
    nodes: Iterable[Node],
    may_go: Callable[[Task], bool],
    allowed: Callable[[], bool] = lambda: True,
) -> bool:
    """Pipelines `task` on the first of `nodes` with room for it, once as many as it takes of those
    who may go have gone. Changes nothing and returns False if there is none.

    Args:
        allowed: whether the queue may hold it.
    """
    session = statement.session

    def has_room(node: Node) -> bool:
        return fits(task.requests, session.future_idle(node)) and allowed()

    for node in nodes:
        candidates = [v for v in session.tasks_on(node) if v.preemptable and may_go(v)]
        # As Volcano: reclaim passes over a node without anybody to take from.
        if kind == "reclaimable" and not candidates:
            continue
        coming = with_all(session.future_idle(node), (v.requests for v in candidates))
        # Quicker than asking whom plugins let go, on most nodes of a full cluster.
        if not fits(task.requests, coming):
            continue
        attempt = Statement(session)
        for victim in session.victims(kind, task, candidates):
            if has_room(node):
                break
            attempt.evict(victim)
        if has_room(node):
            attempt.pipeline(task, node)
            statement.merge(attempt)
            return True
        attempt.discard()
    return False
