"""Evicting just enough on one node for one pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from volcano_elastic.local.scheduler.resources import fits, lacking, plus
from volcano_elastic.local.scheduler.session import Session, Statement
from volcano_elastic.local.scheduler.snapshot import Node, Task


def make_room(
    session: Session,
    statement: Statement,
    task: Task,
    kind: Literal["preemptable", "reclaimable"],
    may_go: Callable[[Task], bool],
) -> bool:
    """Pipelines `task` where it fits, else on the best node where victims free enough for it.

    Changes nothing and returns False if there is no such node.
    """
    queue = session.queues[session.jobs[task.job or ""].queue or ""]
    if session.allocatable(queue, task) and (node := session.place(task, session.future_idle)):
        statement.pipeline(task, node)
        return True
    open_nodes = [n for n in session.nodes.values() if session.predicate(task, n) is None]
    for node in session.ranked(task, open_nodes):
        victims = session.victims(kind, task, [v for v in session.tasks_on(node) if may_go(v)])
        if not _enough(session, node, task, victims):
            continue
        mark = statement.mark()
        for victim in victims:
            short = lacking(task.requests, session.future_idle(node))
            if not short and session.allocatable(queue, task):
                break
            if not short or any(victim.requests.get(name, 0) > 0 for name in short):
                statement.evict(victim)
        if fits(task.requests, session.future_idle(node)) and session.allocatable(queue, task):
            statement.pipeline(task, node)
            return True
        statement.roll_back(mark)
    return False


def _enough(session: Session, node: Node, task: Task, victims: list[Task]) -> bool:
    room = session.future_idle(node)
    for victim in victims:
        room = plus(room, victim.requests)
    return bool(victims) and fits(task.requests, room)
