"""Counts what a queue's jobs hold, were promised, and could give back: the enqueue test's terms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from embedded_cluster.scheduler.resources import (
    UNLIMITED,
    Resources,
    add,
    asked,
    lacking,
    minus,
    plus,
    with_all,
)
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import HOLDING, Job, Queue, Task, TaskStatus


def promised(session: Session, job: Job) -> dict[str, float]:
    """Let in by enqueue, but not held yet."""
    phase = session.phase.get(job.key)
    runs = phase == "Running" and session.count(job, *HOLDING) >= job.min_member
    if job.min_resources is None or not (phase == "Inqueue" or runs):
        return {}
    held = session.allocated(job)
    due = {name: max(0, least - held.get(name, 0)) for name, least in job.min_resources.items()}
    return less_gated(session, job, due)


def less_gated(session: Session, job: Job, due: Resources) -> dict[str, float]:
    """Nothing is promised to gated pods."""
    left = dict(due)
    for task in session.tasks(job, TaskStatus.GATED):
        for name in left:
            left[name] = max(0, left[name] - task.requests.get(name, 0))
    return left


def requested(session: Session, queue: Queue) -> dict[str, float]:
    """Return the amounts that the queue's pods hold or wait for."""
    out: dict[str, float] = {}
    for job in session.jobs.values():
        if job.queue == queue.name:
            for task in session.tasks(job, *HOLDING, TaskStatus.PENDING, TaskStatus.GATED):
                add(out, task.requests)
    return out


def real_capability(session: Session, queue: Queue, *, tree: bool = False) -> dict[str, float]:
    """The most it can hold: its capability, and what others' guarantees leave of the whole.

    In a tree the whole is what the parent can hold, and the others are its siblings; root, and who
    has no parent or a ring of them, has no bounds but its own.
    """
    parent = session.queues.get(queue.parent or "") if tree else None
    if tree and (parent is None or queue.name in session.ancestry(parent.name)):
        left: dict[str, float] = dict.fromkeys(session.total, UNLIMITED)
    else:
        left = real_capability(session, parent, tree=True) if parent else dict(session.total)
        for other in session.queues.values():
            if other is not queue and (not tree or other.parent == queue.parent):
                add(left, other.guarantee, -1)
    return {
        name: min(max(0, left[name]), queue.capability.get(name, UNLIMITED))
        for name in session.total
    }


def within(held: Resources, task: Task, bounds: Resources) -> list[str]:
    """Return what would be beyond `bounds` if the task came to what is held, of what it asks
    for."""
    after = plus(held, task.requests)
    return lacking({name: after[name] for name in asked(task.requests)}, bounds)


class Claims:
    """Lets jobs in, one after another, by their queues' bounds.

    Args:
        bounds: what each queue may hold.
        tree: a queue's parents have to have room as well.
    """

    def __init__(self, session: Session, bounds: Mapping[str, Resources], *, tree: bool) -> None:
        self._session, self._bounds, self._tree = session, bounds, tree
        self._promised: dict[str, dict[str, float]] = defaultdict(dict)
        """By queue, less what is elastic: held beyond minResources, so all where there is none."""
        for job in session.jobs.values():
            beyond = minus(session.allocated(job), job.min_resources or {})
            elastic = {name: amount for name, amount in beyond.items() if amount > 0}
            for name in self._queues(job):
                add(self._promised[name], promised(session, job))
                add(self._promised[name], elastic, -1)

    def _queues(self, job: Job) -> list[str]:
        names = self._session.ancestry(job.queue)
        return [name for name in (names if self._tree else names[:1]) if name in self._bounds]

    def admit(self, job: Job) -> str | None:
        """Promises its minimum to the job, or says why not."""
        session, least = self._session, job.min_resources or {}
        for name in self._queues(job):
            queue = session.queues[name]
            if name == job.queue and not queue.open:
                return f"queue {name} is {queue.state or 'not open yet'}; it must be Open"
            want = with_all(least, (session.allocated(queue), self._promised[name]))
            short = lacking({name: want[name] for name in asked(least)}, self._bounds[name])
            if short:
                return f"queue {name} has too little {', '.join(short)} for its minimum"
        for name in self._queues(job):
            add(self._promised[name], less_gated(session, job, least))
        return None
