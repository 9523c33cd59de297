"""A starving gang takes back what other queues borrowed."""

from __future__ import annotations

from embedded_cluster.scheduler.actions.room import claim, make_room, starving
from embedded_cluster.scheduler.actions.turns import Turns
from embedded_cluster.scheduler.resources import fits
from embedded_cluster.scheduler.session import Session, Statement
from embedded_cluster.scheduler.snapshot import Node, Task, TaskStatus


def reclaim(session: Session) -> None:
    turns = Turns(session, starving(session), skip_overused=True)
    while job := turns.take():
        claim(session, job, _make_room)


def _make_room(statement: Statement, task: Task) -> None:
    """Volcano takes any node where its victims leave it room, here one where nobody has to go comes
    first."""
    session = statement.session
    queue = session.queue_of(task)

    def takeable(victim: Task) -> bool:
        its = session.queues.get(session.job_of(victim).queue or "")
        others = its is not None and its is not queue and its.reclaimable
        return others and session.status(victim) is TaskStatus.RUNNING

    def has_room(node: Node) -> bool:
        return fits(task.requests, session.future_idle(node))

    if task.preempts and session.preemptive(queue, task):
        nodes = sorted(session.ranking(task).nodes(), key=has_room, reverse=True)
        make_room(statement, "reclaimable", task, nodes, takeable)
