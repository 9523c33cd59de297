"""Pending PodGroups become Inqueue while their queue has room for their minimum."""

from __future__ import annotations

from volcano_elastic.local.scheduler.session import Session


def enqueue(session: Session) -> None:
    pending = [job for job in session.jobs.values() if session.phase.get(job.key) == "Pending"]
    for job in sorted(pending, key=lambda j: (session.queue_place(j), session.job_key(j))):
        if session.job_valid(job):
            continue
        refusal = session.job_enqueueable(job)
        if refusal:
            session.reasons[job.key] = refusal
        else:
            session.phase[job.key] = "Inqueue"
