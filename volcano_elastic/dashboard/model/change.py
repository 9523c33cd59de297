"""Changes of jobs, as their objects tell of them: arrivals, sizes with their reasons, ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob_validation import queue as queue_of

Object = Mapping[str, Any]
_LONGEST = 600
"""Characters of a message."""


class Kind(StrEnum):
    """Something that happened to a job."""

    ARRIVED = "Arrived"
    SIZED = "Sized"
    """It got its first size."""
    RESIZED = "Resized"
    SUSPENDED = "Suspended"
    RESTARTED = "Restarted"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "Deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a job. A job has one of a kind at a time, however often it is seen."""

    time: datetime
    kind: Kind
    uid: str
    job: str
    """namespace/name"""
    queue: str
    old: int | None = None
    """Size before; None where nobody saw it."""
    new: int | None = None
    reason: str = ""
    """`lastScaleReason`, or a condition's reason."""
    message: str = ""


_CONDITIONS = {
    "Suspended": Kind.SUSPENDED,
    "Restarting": Kind.RESTARTED,
    "Succeeded": Kind.SUCCEEDED,
    "Failed": Kind.FAILED,
}


def changes(old: Object | None, new: Object | None, now: datetime) -> list[Change]:
    """Return what happened between two looks at a job.

    Args:
        old: None where it is seen for the first time: then what its status remembers is told, and
            whoever keeps changes knows some of them already.
        new: None once it is deleted.
    """
    job = new if new is not None else old
    assert job is not None
    if old is not None and new is not None and _uid(old) != _uid(new):
        return [*changes(old, None, now), *changes(None, new, now)]
    found: list[Change] = []

    def add(time: datetime, kind: Kind, **more: Any) -> None:
        meta = job["metadata"]
        key = f"{meta.get('namespace', 'default')}/{meta['name']}"
        message = str(more.pop("message", None) or "")[:_LONGEST]
        found.append(Change(time, kind, _uid(job), key, _queue(job), message=message, **more))

    if new is None:
        if not _ends(job):
            add(now, Kind.DELETED, old=_size(job))
        return found
    if old is None:
        created = moment.parse_optional(job["metadata"].get("creationTimestamp"))
        add(created or now, Kind.ARRIVED)
    before, after = _elastic(old), _elastic(new)
    scaled = moment.parse_optional(after.get("lastScaleTime"))
    if scaled is not None and after.get("lastScaleTime") != before.get("lastScaleTime"):
        # An edit of the range changes the time alone; a first size comes from nothing.
        add(
            scaled,
            Kind.RESIZED,
            old=_size(old),
            new=_size(new),
            reason=str(after.get("lastScaleReason") or ""),
            message=after.get("message"),
        )
    elif old is not None and _size(old) is None and _size(new) is not None:
        add(now, Kind.SIZED, new=_size(new))
    known = _true(old)
    for kind, condition in _true(new).items():
        when = str(condition.get("lastTransitionTime"))
        if kind in known and when == str(known[kind].get("lastTransitionTime")):
            continue
        add(
            moment.parse_optional(condition.get("lastTransitionTime")) or now,
            kind,
            old=_size(new),
            reason=str(condition.get("reason") or ""),
            message=condition.get("message"),
        )
    return found


def _uid(job: Object) -> str:
    return str(job["metadata"].get("uid", ""))


def _elastic(job: Object | None) -> Mapping[str, Any]:
    return ((job or {}).get("status") or {}).get("elastic") or {}


def _size(job: Object | None) -> int | None:
    size = _elastic(job).get("desired")
    return size if isinstance(size, int) else None


def _true(job: Object | None) -> dict[Kind, Mapping[str, Any]]:
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return {
        _CONDITIONS[one["type"]]: one
        for one in conditions
        if one.get("status") == "True" and one.get("type") in _CONDITIONS
    }


def _ends(job: Object) -> bool:
    return not {Kind.SUCCEEDED, Kind.FAILED}.isdisjoint(_true(job))


def shown(change: Change) -> dict[str, Any]:
    """Return the change as the page has it."""
    return {
        "time": moment.micro_timestamp(change.time),
        "kind": str(change.kind),
        "job": change.job,
        "queue": change.queue,
        "from": change.old,
        "to": change.new,
        "reason": change.reason,
        "message": change.message,
    }


def _queue(job: Object) -> str:
    """Return the queue that its status says it is in, else the one it asks for."""
    return str((job.get("status") or {}).get("queue") or queue_of(job))
