"""Cooldown protection: a pod bound less than its `volcano.sh/cooldown-time` ago stays."""

from __future__ import annotations

from collections.abc import Sequence

from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Task, TaskStatus
from volcano_elastic.scheduler_conf.configuration import PluginOption


def cdp(session: Session, option: PluginOption) -> Functions:
    def cooling(task: Task) -> bool:
        # As in Volcano the time runs from binding, and protects once the pod is Running.
        until = task.cooling_until
        return task.status is TaskStatus.RUNNING and until is not None and until > session.now

    def cooled(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        return [task for task in candidates if not cooling(task)]

    return Functions(preemptable=cooled, reclaimable=cooled)
