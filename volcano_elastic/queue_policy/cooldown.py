"""How long after a change of its size a job is left alone by growth; claims never wait for it."""

from __future__ import annotations

from datetime import datetime, timedelta

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.queue_policy.decision import Reason
from volcano_elastic.queue_policy.snapshot import Job

UNPLACED_COOLDOWN = timedelta(seconds=60)
"""The least time after surplus found no place before the job grows again."""


def ready(job: Job, policy: QueuePolicy) -> datetime | None:
    """When the job may change its size again of its own; None if it has never changed it."""
    if job.last_scale is None:
        return None
    cooldown = max(job.cooldown, policy.grow.stabilization)
    if job.last_reason == Reason.SURPLUS_UNPLACED:
        cooldown = max(cooldown, UNPLACED_COOLDOWN)
    if policy.name:
        # A default of ours must not overrule what the job says.
        cooldown = max(cooldown, policy.grow.cooldown)
    return job.last_scale + cooldown


def cooldown_left(job: Job, policy: QueuePolicy, now: datetime) -> timedelta:
    """Zero if it may grow, as before its first change."""
    again = ready(job, policy)
    return timedelta(0) if again is None else max(timedelta(0), again - now)
