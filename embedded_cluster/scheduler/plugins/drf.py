"""Dominant resource fairness: the job that holds the least goes next."""

from __future__ import annotations

from collections.abc import Sequence

from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.resources import Resources, dominant_share, minus, plus
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Task
from volcano_elastic.scheduler_conf.configuration import PluginOption

_EQUAL = 1e-6


def drf(session: Session, option: PluginOption) -> Functions:
    def fairer(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        mine = plus(session.allocated(session.job_of(claimant)), claimant.requests)
        left: dict[str, Resources] = {}
        victims = []
        for task in candidates:
            job = session.job_of(task)
            left[job.key] = minus(left.get(job.key, session.allocated(job)), task.requests)
            theirs = dominant_share(left[job.key], session.total)
            if dominant_share(mine, session.total) <= theirs + _EQUAL:
                victims.append(task)
        return victims

    return Functions(
        job_order=lambda job: dominant_share(session.allocated(job), session.total),
        preemptable=fairer,
    )
