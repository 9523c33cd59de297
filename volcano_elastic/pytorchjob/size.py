"""The size that an elastic job should have now, and why that changed.

admitted by Kueue        ─► replicas of the elastic role, no more and no less
not written yet          ─► max(least, its live pods)
a planner's decision     ─► its new size, unless more pods are evicted or lost than it knows of
outside [least, max]     ─► the nearest end
evicted, or lost for good─► fewer by those, not below least: their place is somebody else's now

Least is min, or an explicit minAvailable where that is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.observed import Replica, Resize, State

EVICTED = "Evicted"
REPLICAS_FAILED = "ReplicasFailed"
LIMITS_CHANGED = "LimitsChanged"
KUEUE = "SizedByKueue"
_PLACES = (State.LIVE, State.SUCCEEDED, State.RETRY, State.NODE_LOST, State.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class Size:
    desired: int
    changed: bool = False
    """Against the durable size, or the one assumed for want of it."""
    reason: str = ""
    message: str = ""
    remove: frozenset[str] = frozenset()
    """Names of the pods that leave, whatever else is removed."""
    move: frozenset[str] = frozenset()
    """Names of the pods that leave their node and are made anew elsewhere."""
    enough: bool = True
    """False if, after losses for good, fewer than least can go on."""


def size(job: PyTorchJob, view: Sequence[Replica], resize: Resize | None) -> Size | None:
    """Return the size that the job should have now; None for a job of fixed size."""
    policy, sized = job.elastic, job.sized
    if policy is None or sized is None:
        return None
    workers = [r for r in view if r.role.elastic]
    if job.kueue:
        count = sized.replicas
        message = f"Kueue admitted the job with {count} replicas, so it keeps that size"
        return Size(count, count != job.desired, KUEUE, message)
    live = sum(r.live for r in workers)
    least, most = job.least_size, policy.max
    current = max(least, live) if job.desired is None else job.desired
    if resize is not None and current in (resize.old, resize.new):
        desired = min(max(resize.new, least), most)
        remove = resize.remove if resize.new <= resize.old else frozenset()
        taken = _after_losses(job, workers, current)
        left = taken.desired - sum(r.name in remove and _has_place(r) for r in workers)
        if taken.changed and (left < desired or taken.desired == desired):
            # The planner saw fewer of them go, and others would be made in their places, or it
            # gives up only what Volcano has taken.
            return taken
        changed = desired != current
        return Size(desired, changed, resize.reason, resize.message, remove, resize.move)
    within = min(max(current, least), most)
    if within != current:
        message = f"{current} is outside of {least} to {most} replicas"
        return Size(within, job.desired is not None, LIMITS_CHANGED, message)
    return _after_losses(job, workers, within)


def _after_losses(job: PyTorchJob, workers: Sequence[Replica], current: int) -> Size:
    missing = max(0, current - sum(map(_has_place, workers)))
    evicted = sum(r.uid not in job.counted_evictions for r in workers if _evicted(r))
    lost = min(missing, len(newly_lost(job, workers)))
    enough = current - lost >= job.least_size
    fewer = min(missing, evicted + lost)
    desired = max(job.least_size, current - fewer)
    if desired == current:
        return Size(current, enough=enough)
    if lost:
        return Size(desired, True, REPLICAS_FAILED, f"{_replicas(lost)} failed", enough=enough)
    message = (
        f"{_replicas(fewer)} {'was' if fewer == 1 else 'were'} evicted: "
        f"{', '.join(_names(workers))}"
    )
    return Size(desired, True, EVICTED, message)


def evictions(view: Sequence[Replica]) -> list[str]:
    """Return the uids of the elastic role's evicted pods, sorted: a size that is decided now counts
    them. The second of an eviction would not tell: a pod may be told of it in one, and leave in the
    next."""
    return sorted(r.uid for r in view if r.role.elastic and _evicted(r))


def newly_lost(job: PyTorchJob, view: Sequence[Replica]) -> list[Replica]:
    """Return the elastic role's pods that failed for good since the size was last changed."""
    return [
        r
        for r in view
        if r.role.elastic and r.state is State.LOST and _newly(r.ended, job.last_scale)
    ]


def _has_place(replica: Replica) -> bool:
    return replica.comes_back or replica.state in _PLACES


def _evicted(replica: Replica) -> bool:
    return replica.evicted is not None and replica.state in (State.LEAVING, State.EVICTED)


def _names(workers: Sequence[Replica]) -> list[str]:
    return [r.name for r in workers if _evicted(r)]


def _newly(moment: datetime | None, last_scale: datetime | None) -> bool:
    """Return whether the last change of size does not count it yet. Pods tell whole seconds."""
    if moment is None or last_scale is None:
        return True
    return moment >= last_scale.replace(microsecond=0)


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"
