"""A job's life as its object tells it: what it asked for, when it ran, what it used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.api.pytorchjob_shape import USER_ANNOTATION
from volcano_elastic.api.pytorchjob_validation import queue as queue_of
from volcano_elastic.pytorchjob.goodput import summed
from volcano_elastic.pytorchjob.pod import requests


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job from its creation to its end. Sizes are in workers; a Master counts as one."""

    uid: str
    job: str
    """namespace/name"""
    queue: str
    user: str = ""
    """The one that the job names; else its namespace."""
    each: int
    """Thousandths of the cluster's resource that a worker asks for."""
    min: int
    max: int
    asked: int = 0
    """Replicas that it asks for: what rigid scheduling would give it; 0: its minimum."""
    created: datetime
    started: datetime | None = None
    """When its minimum first ran, or the earliest that is known to be no earlier than that."""
    ended: datetime | None = None
    outcome: str = ""
    """Succeeded, Failed or Deleted; empty while it goes on."""
    hours: float = 0.0
    """GPU-hours that it has used."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds of its processes, by their use (`goodput.USES`); empty where nobody told."""
    remaining: float | None = None
    """Seconds that the rest takes at its present size, as its training said at `said`."""
    said: datetime | None = None


def read_record(obj: Mapping[str, Any], resource: str) -> JobRecord | None:
    """Return what a PyTorchJob tells of its life; None of one that can't be carried out."""
    try:
        job = parse(obj)
    except InvalidJob:
        return None
    sized = job.sized
    if sized is None:
        return None
    status = job.status
    elastic = status.get("elastic") or {}
    policy = None if job.kueue else job.elastic
    each = requests(job, sized.role).get(resource, 0)
    least = job.least_size if policy else sized.replicas
    most = policy.max if policy else sized.replicas
    master = int(job.leader is not None and requests(job, job.leader.role).get(resource, 0) > 0)
    least, most = least + master, most + master
    running = _condition(status, "Running")
    progress = elastic.get("progress") or {}
    remaining = progress.get("estimatedRemainingSeconds")
    ended = job.completed if job.finished else None
    spent = summed([elastic.get("goodput")])
    return JobRecord(
        uid=str(obj["metadata"].get("uid", "")),
        job=job.key,
        queue=str(status.get("queue") or queue_of(obj)),
        user=str((obj["metadata"].get("annotations") or {}).get(USER_ANNOTATION) or job.namespace),
        each=each,
        min=least,
        max=most,
        asked=min(max(sized.replicas + master, least), most),
        created=job.created,
        started=moment.parse_optional(running.get("lastTransitionTime"))
        if running.get("status") == "True"
        else None,
        ended=ended,
        outcome=_outcome(status) if job.finished else "",
        hours=_number(elastic.get("gpuHours")),
        spent=spent if any(spent.values()) else {},
        remaining=_number(remaining) if remaining is not None else None,
        said=moment.parse_optional(progress.get("lastUpdatedTime")),
    )


def last_record(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, resource: str, now: datetime
) -> JobRecord | None:
    """Return what is known of a job after a change; `new` None: it was deleted just now."""
    obj = new if new is not None else old
    record = None if obj is None else read_record(obj, resource)
    if record is None or new is not None or record.ended is not None:
        return record
    return replace(record, ended=now, outcome="Deleted")


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = (c for c in status.get("conditions") or () if c.get("type") == name)
    return next(found, {})


def _outcome(status: Mapping[str, Any]) -> str:
    ends = ("Succeeded", "Failed")
    return next((n for n in ends if _condition(status, n).get("status") == "True"), "")


def _number(found: object) -> float:
    plain = isinstance(found, int | float) and not isinstance(found, bool)
    return max(0.0, float(found)) if plain else 0.0  # type: ignore[arg-type]
