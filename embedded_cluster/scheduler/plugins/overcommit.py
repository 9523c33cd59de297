"""Lets in jobs up to a multiple of the whole cluster; blind to what is elastic, as in Volcano."""

from __future__ import annotations

from embedded_cluster.scheduler.claims import less_gated, promised
from embedded_cluster.scheduler.functions import Functions, number
from embedded_cluster.scheduler.resources import add, asked, lacking, minus
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Job
from volcano_elastic.scheduler_conf.configuration import PluginOption

_FACTOR = 1.2


def overcommit(session: Session, option: PluginOption) -> Functions:
    factor = number(option, "overcommit-factor", _FACTOR)
    if factor < 1:
        factor = _FACTOR
    room = {name: amount * factor for name, amount in session.total.items()}
    for node in session.nodes.values():
        add(room, minus(node.allocatable, session.idle(node)), -1)
    for job in session.jobs.values():
        whole = session.phase.get(job.key) == "Inqueue"
        due = less_gated(session, job, job.min_resources or {}) if whole else promised(session, job)
        add(room, due, -1)

    def enqueueable(job: Job) -> str | None:
        least = job.min_resources or {}
        if short := lacking({name: least[name] for name in asked(least)}, room):
            return f"the cluster, overcommitted {factor} times, has too little {', '.join(short)}"
        add(room, less_gated(session, job, least), -1)
        return None

    return Functions(job_enqueueable=enqueueable)
