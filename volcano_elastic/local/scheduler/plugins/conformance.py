"""The cluster's own critical pods stay."""

from __future__ import annotations

from collections.abc import Sequence

from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Task
from volcano_elastic.queue_policy.scheduler_configuration import PluginOption


def conformance(session: Session, option: PluginOption) -> Functions:
    def ordinary(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        return [task for task in candidates if not task.critical]

    return Functions(preemptable=ordinary, reclaimable=ordinary)
