"""What Volcano reads from a pod: its gang, role, priority and whether it may be evicted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from volcano_elastic.api.pytorchjob import MASTER, PyTorchJob

GROUP_NAME = "scheduling.k8s.io/group-name"
TASK_SPEC = "volcano.sh/task-spec"
TASK_PRIORITY = "volcano.sh/task-priority"
PREEMPTABLE = "volcano.sh/preemptable"
COOLDOWN_TIME = "volcano.sh/cooldown-time"

# Above any index, so that priorities stay positive as they fall.
_HIGHEST = 1_000_000


def task_priority(kind: str, index: int) -> int:
    """The Master first, then Workers by index: placed in this order, evicted in reverse."""
    return _HIGHEST if kind == MASTER else max(0, _HIGHEST - 1 - index)


def pod_annotations(
    job: PyTorchJob, kind: str, index: int, *, protected: bool, protect: timedelta | None = None
) -> dict[str, str]:
    """Given at creation, since Volcano joins pods to PodGroups then.

    `protect` is how long after it was bound Volcano's cdp plugin spares a surplus pod.
    """
    given = {GROUP_NAME: job.name, TASK_SPEC: kind.lower()}
    if job.elastic is None:
        return given
    given[TASK_PRIORITY] = str(task_priority(kind, index))
    given[PREEMPTABLE] = preemptable(protected=protected)
    if not protected and protect:
        given[COOLDOWN_TIME] = f"{protect.total_seconds():g}s"
    return given


def preemptable(*, protected: bool) -> str:
    return "false" if protected else "true"


def is_protected(pod: Mapping[str, Any]) -> bool:
    """As Volcano reads it: the annotation, else the label; true unless it says otherwise."""
    meta = pod["metadata"]
    found = (meta.get("annotations") or {}).get(PREEMPTABLE)
    if found is None:
        found = (meta.get("labels") or {}).get(PREEMPTABLE, "true")
    return str(found) == "false"
