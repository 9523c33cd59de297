"""Places pods that ask for nothing; no queue's limit keeps them waiting."""

from __future__ import annotations

from volcano_elastic.local.scheduler.resources import PODS
from volcano_elastic.local.scheduler.session import Session, Statement


def backfill(session: Session) -> None:
    for job in session.placeable_jobs():
        statement = Statement(session)
        for task in session.pending(job):
            asks = any(amount for name, amount in task.requests.items() if name != PODS)
            if not asks and (node := session.place(task, session.idle)):
                statement.allocate(task, node)
        if session.job_ready(job):
            statement.commit()
        else:
            statement.discard()
