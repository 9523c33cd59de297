"""How long after a change of its size a job is left alone by growth; claims never wait for it."""

from __future__ import annotations

from datetime import datetime, timedelta

from volcano_elastic.api.queue_policy import QueuePolicy
from volcano_elastic.queue_policy.snapshot import Job


def cooldown_left(job: Job, policy: QueuePolicy, now: datetime) -> timedelta:
    """Zero if it may grow, as before its first change."""
    if job.last_scale is None:
        return timedelta(0)
    cooldown = max(job.cooldown, policy.grow.stabilization)
    if policy.name:
        # A default of ours must not overrule what the job says.
        cooldown = max(cooldown, policy.grow.cooldown)
    return max(timedelta(0), job.last_scale + cooldown - now)
