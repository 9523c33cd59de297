"""Annotations that Volcano reads from a pod: gang, role, priority, and whether it may be
evicted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import Role

GROUP_NAME = "scheduling.k8s.io/group-name"
TASK_SPEC = "volcano.sh/task-spec"
TASK_PRIORITY = "volcano.sh/task-priority"
PREEMPTABLE = "volcano.sh/preemptable"
COOLDOWN_TIME = "volcano.sh/cooldown-time"


def pod_annotations(
    job: PyTorchJob, role: Role, index: int, *, protected: bool, protect: timedelta | None = None
) -> dict[str, str]:
    """Return a pod's annotations; given at creation, since Volcano joins pods to PodGroups then.

    `protect` is how long after it was bound Volcano's cdp plugin spares a surplus pod.
    """
    given = {GROUP_NAME: job.name, TASK_SPEC: role.label}
    if job.elastic is None:
        return given
    given[TASK_PRIORITY] = str(role.task_priority(index))
    given[PREEMPTABLE] = preemptable(protected=protected)
    if not protected and protect:
        given[COOLDOWN_TIME] = f"{protect.total_seconds():g}s"
    return given


def preemptable(*, protected: bool) -> str:
    return "false" if protected else "true"


def is_protected(pod: Mapping[str, Any]) -> bool:
    """Return whether Volcano spares the pod, as it reads it: the annotation, else the label;
    without either it may be evicted."""
    meta = pod["metadata"]
    found = (meta.get("annotations") or {}).get(PREEMPTABLE)
    if found is None:
        found = (meta.get("labels") or {}).get(PREEMPTABLE, "true")
    return str(found) == "false"
