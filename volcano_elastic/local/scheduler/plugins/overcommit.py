"""Lets in jobs up to a multiple of the whole cluster; blind to what is elastic, as in Volcano."""

from __future__ import annotations

from volcano_elastic.local.scheduler.claims import promised
from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.resources import lacking, minus, plus
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Job


def overcommit(session: Session, option: PluginOption) -> Functions:
    factor = option.number("overcommit-factor", 1.2)

    def enqueueable(job: Job) -> str | None:
        if job.min_resources is None:
            return None
        room = {name: int(amount * factor) for name, amount in session.total.items()}
        for node in session.nodes.values():
            room = minus(room, minus(node.allocatable, session.idle(node)))
        asked: dict[str, int] = dict(job.min_resources)
        for other in session.jobs.values():
            asked = plus(asked, promised(session, other))
        requested = {name: asked[name] for name, amount in job.min_resources.items() if amount > 0}
        short = lacking(requested, room)
        if not short:
            return None
        return f"the cluster, overcommitted {factor} times, has too little {', '.join(short)}"

    return Functions(job_enqueueable=enqueueable)
