"""Queues by weight: the whole is shared among those that ask, each at most what it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from volcano_elastic.local.scheduler.claims import no_room, real_capability
from volcano_elastic.local.scheduler.configuration import PluginOption
from volcano_elastic.local.scheduler.functions import Functions
from volcano_elastic.local.scheduler.resources import minus, plus
from volcano_elastic.local.scheduler.session import Session
from volcano_elastic.local.scheduler.snapshot import HOLDING, Job, Queue, Task, TaskStatus


def proportion(session: Session, option: PluginOption) -> Functions:
    capability = {q.name: real_capability(session, q) for q in session.queues.values()}
    asked: dict[str, dict[str, int]] = {}
    for job in session.jobs.values():
        if job.queue in session.queues:
            for task in session.tasks(job, HOLDING | {TaskStatus.PENDING}):
                asked[job.queue] = plus(asked.get(job.queue, {}), task.requests)
    deserved: dict[str, dict[str, int]] = {name: {} for name in session.queues}
    for resource, amount in session.total.items():
        caps = {
            name: min(request.get(resource, 0), capability[name].get(resource, 0))
            for name, request in asked.items()
        }
        weights = {name: session.queues[name].weight for name in asked}
        floors = {name: session.queues[name].guarantee.get(resource, 0) for name in asked}
        for name, due in share_out(amount, weights=weights, caps=caps, floors=floors).items():
            deserved[name][resource] = due

    def within_deserved(queue: Queue, task: Task) -> bool:
        held, due = session.allocated(queue), deserved[queue.name]
        return all(
            held.get(name, 0) + amount <= due.get(name, 0)
            for name, amount in task.requests.items()
            if amount > 0
        )

    def overused(queue: Queue) -> bool:
        held = session.allocated(queue)
        return all(held.get(name, 0) >= due for name, due in deserved[queue.name].items())

    def beyond(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        left: dict[str, dict[str, int]] = {}
        victims = []
        for task in candidates:
            queue = session.queues[session.jobs[task.job or ""].queue or ""]
            held = left.get(queue.name, dict(session.allocated(queue)))
            if any(held.get(name, 0) > due for name, due in deserved[queue.name].items()):
                left[queue.name] = minus(held, task.requests)
                victims.append(task)
        return victims

    def order(queue: Queue) -> tuple[float, ...]:
        held = session.allocated(queue)
        shares = [held.get(n, 0) / due for n, due in deserved[queue.name].items() if due]
        return (-queue.priority, max(shares, default=0.0))

    def enqueueable(job: Job) -> str | None:
        return no_room(session, job, capability.get(job.queue or "", {}))

    return Functions(
        queue_order=order,
        job_enqueueable=enqueueable,
        overused=overused,
        allocatable=within_deserved,
        preemptive=within_deserved,
        reclaimable=beyond,
    )


def share_out(
    amount: int, *, weights: dict[str, int], caps: dict[str, int], floors: dict[str, int]
) -> dict[str, int]:
    """Fills all by weight at once; who is full leaves the rest to the others.

    A floor is given even to who asks for less, and first of all.
    """
    given = dict.fromkeys(weights, 0)
    hungry = {name for name in weights if caps[name] > 0}
    remaining = amount
    while hungry and remaining > 0:
        total = sum(weights[name] for name in hungry)
        wishes = {name: given[name] + remaining * weights[name] // total for name in hungry}
        full = {name for name in hungry if wishes[name] >= caps[name]}
        for name in full or hungry:
            due = caps[name] if full else wishes[name]
            remaining -= due - given[name]
            given[name] = due
        if not full:
            break
        hungry -= full
    return {name: max(given[name], floors[name]) for name in given}
