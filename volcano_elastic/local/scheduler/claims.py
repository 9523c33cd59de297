"""What a queue's jobs hold, were promised, and could give back: the enqueue test's terms."""

from __future__ import annotations

from volcano_elastic.local.scheduler.resources import UNLIMITED, Resources, lacking, minus, plus
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import Job, Queue


def elastic(session: Session, job: Job) -> dict[str, int]:
    """Held beyond minResources; all of it where there is no minResources."""
    return _positive(minus(session.allocated(job), job.min_resources or {}))


def promised(session: Session, job: Job) -> dict[str, int]:
    """Let in by enqueue, but not held yet."""
    if session.phase.get(job.key, "Pending") in ("Pending", "Completed"):
        return {}
    return _positive(minus(job.min_resources or {}, session.allocated(job)))


def real_capability(session: Session, queue: Queue, *, hierarchy: bool = False) -> dict[str, int]:
    """The most the queue can hold: its capability, and what others' guarantees leave of the whole.

    With `hierarchy` the whole is what the parent can hold, and the others are its siblings.
    """
    parent = session.queues.get(queue.parent or "") if hierarchy else None
    if hierarchy and queue.parent is None:
        return _capped(session.total, queue.capability)
    whole: Resources = session.total
    if parent is not None and queue.name not in session.ancestry(queue.parent):
        whole = real_capability(session, parent, hierarchy=True)
    kept: dict[str, int] = {}
    for other in session.queues.values():
        if other.name != queue.name and (not hierarchy or other.parent == queue.parent):
            kept = plus(kept, other.guarantee)
    left = {name: amount - kept.get(name, 0) for name, amount in whole.items()}
    return _capped(left, queue.capability)


def no_room(session: Session, job: Job, capability: Resources) -> str | None:
    """Why `job` can't be let in to a queue that may hold `capability`; None if it can."""
    if job.min_resources is None or job.queue is None:
        return None
    asked: dict[str, int] = dict(job.min_resources)
    for other in session.jobs.values():
        if other.queue == job.queue:
            asked = plus(asked, session.allocated(other))
            asked = minus(plus(asked, promised(session, other)), elastic(session, other))
    requested = {name: asked[name] for name, amount in job.min_resources.items() if amount > 0}
    short = lacking(requested, capability)
    return f"queue {job.queue} has too little {', '.join(short)} for its minimum" if short else None


def _capped(room: Resources, capability: Resources) -> dict[str, int]:
    return {name: min(amount, capability.get(name, UNLIMITED)) for name, amount in room.items()}


def _positive(resources: Resources) -> dict[str, int]:
    return {name: max(0, amount) for name, amount in resources.items()}
