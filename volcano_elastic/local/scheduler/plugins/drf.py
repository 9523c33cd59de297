"""Dominant resource fairness: the job that holds the least goes next."""

from __future__ import annotations

from collections.abc import Sequence

from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.resources import minus, plus, share
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Task


def drf(session: Session, option: PluginOption) -> Functions:
    def fairer(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        mine = plus(session.allocated(session.jobs[claimant.job or ""]), claimant.requests)
        left: dict[str, dict[str, int]] = {}
        victims = []
        for task in candidates:
            job = session.jobs[task.job or ""]
            theirs = minus(left.get(job.key, session.allocated(job)), task.requests)
            if share(mine, session.total) <= share(theirs, session.total) + 1e-6:
                left[job.key] = theirs
                victims.append(task)
        return victims

    return Functions(
        job_order=lambda job: share(session.allocated(job), session.total),
        preemptable=fairer,
    )
