"""The cluster's own critical pods stay."""

from __future__ import annotations

from collections.abc import Sequence

from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Task
from volcano_elastic.scheduler_conf.configuration import PluginOption


def conformance(session: Session, option: PluginOption) -> Functions:
    def ordinary(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        return [task for task in candidates if not task.critical]

    return Functions(preemptable=ordinary, reclaimable=ordinary)
