"""Past jobs for forecasts."""

from __future__ import annotations

from datetime import timedelta

from tests.queue_policy.world import NOW
from volcano_elastic.forecast.job_record import JobRecord


def past_job(
    user: str,
    start: float,
    end: float | None,
    *,
    queue: str = "default",
    least: int = 1,
    most: int = 1,
    hours: float = 0.0,
) -> JobRecord:
    """Seconds are from `NOW`; without an end it still runs."""
    began = NOW + timedelta(seconds=start)
    return JobRecord(
        uid=f"{user} {start}",
        job=f"{user}/job",
        queue=queue,
        user=user,
        each=1000,
        min=least,
        max=most,
        created=began,
        started=began,
        ended=None if end is None else NOW + timedelta(seconds=end),
        outcome="" if end is None else "Succeeded",
        hours=hours,
    )
