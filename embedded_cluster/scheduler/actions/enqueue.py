"""Pending PodGroups become Inqueue while their queue has room for their minimum."""

from __future__ import annotations

from embedded_cluster.scheduler.actions.turns import Turns
from embedded_cluster.scheduler.session import Session


def enqueue(session: Session) -> None:
    pending = [job for job in session.jobs.values() if session.phase.get(job.key) == "Pending"]
    turns = Turns(session, pending, skip_overused=False)
    while job := turns.take():
        refusal = None if job.min_resources is None else session.job_enqueueable(job)
        if refusal:
            session.reasons[job.key] = refusal
        else:
            session.phase[job.key] = "Inqueue"
