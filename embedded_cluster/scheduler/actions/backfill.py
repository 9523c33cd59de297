"""Places pods that ask for nothing; no queue's limit keeps them waiting."""

from __future__ import annotations

from embedded_cluster.scheduler.actions.turns import Turns
from embedded_cluster.scheduler.session import Session, Statement


def backfill(session: Session) -> None:
    turns = Turns(session, session.jobs_to_place(), skip_overused=False)
    while job := turns.take():
        statement = Statement(session)
        for task in session.pending(job):
            if not task.best_effort:
                continue
            best = session.ranking(task).best()
            if best and best[1]:
                statement.allocate(task, best[0])
            else:
                session.reasons[task.uid] = session.ranking(task).why_none()
        if session.job_ready(job):
            statement.commit()
        else:
            statement.discard()
