"""Queues by weight: the whole is shared among those that ask, each at most what it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedded_cluster.scheduler.claims import Claims, real_capability, requested, within
from embedded_cluster.scheduler.functions import Functions
from embedded_cluster.scheduler.resources import Resources, minus, share
from embedded_cluster.scheduler.session import Session
from embedded_cluster.scheduler.snapshot import Queue, Task
from volcano_elastic.scheduler_conf.configuration import PluginOption


def proportion(session: Session, option: PluginOption) -> Functions:
    bounds = {queue.name: real_capability(session, queue) for queue in session.queues.values()}
    deserved = deserved_by_weight(session, bounds)
    claims = Claims(session, bounds, tree=False)

    def beyond_deserved(queue: Queue, task: Task) -> str | None:
        short = within(session.allocated(queue), task, deserved[queue.name])
        return f"queue {queue.name} deserves no more {', '.join(short)}" if short else None

    def overused(queue: Queue) -> bool:
        held = session.allocated(queue)
        return all(held.get(name, 0) >= due for name, due in deserved[queue.name].items())

    def beyond(claimant: Task, candidates: Sequence[Task]) -> list[Task]:
        left: dict[str, Resources] = {}
        victims = []
        for task in candidates:
            queue = session.queue_of(task)
            held = left.get(queue.name, session.allocated(queue))
            if any(amount > deserved[queue.name].get(name, 0) for name, amount in held.items()):
                left[queue.name] = minus(held, task.requests)
                victims.append(task)
        return victims

    def share_of(queue: Queue) -> float:
        held = session.allocated(queue)
        shares = (share(held.get(n, 0), due) for n, due in deserved[queue.name].items() if due)
        return max(shares, default=0.0)

    return Functions(
        queue_order=lambda queue: (-queue.priority, share_of(queue)),
        job_enqueueable=claims.admit,
        overused=overused,
        allocatable=beyond_deserved,
        preemptive=lambda queue, task: beyond_deserved(queue, task) is None,
        reclaimable=beyond,
    )


def deserved_by_weight(
    session: Session, bounds: Mapping[str, Resources]
) -> dict[str, dict[str, float]]:
    """Return what each queue deserves of the whole, by weight among those that have jobs."""
    names = {job.queue for job in session.jobs.values()}
    queues = [queue for queue in session.queues.values() if queue.name in names]
    requests = {queue.name: requested(session, queue) for queue in queues}
    deserved: dict[str, dict[str, float]] = {name: {} for name in session.queues}
    for resource, amount in session.total.items():
        due = share_out(
            amount,
            weights={queue.name: queue.weight for queue in queues},
            caps={
                name: min(request.get(resource, 0), bounds[name].get(resource, 0))
                for name, request in requests.items()
            },
            floors={queue.name: queue.guarantee.get(resource, 0) for queue in queues},
        )
        for name, share_due in due.items():
            deserved[name][resource] = share_due
    return deserved


def share_out(
    amount: float,
    *,
    weights: Mapping[str, int],
    caps: Mapping[str, float],
    floors: Mapping[str, float],
) -> dict[str, float]:
    """Fills all by weight at once; who is full leaves the rest to the others.

    A floor is given even to who asks for less.
    """
    given = dict.fromkeys(weights, 0.0)
    hungry = set(weights)
    left = amount
    while hungry and left > 0:
        total = sum(weights[name] for name in hungry)
        before = dict(given)
        for name in sorted(hungry):
            wish = given[name] + left * weights[name] / total
            given[name] = max(min(wish, caps[name]), floors[name])
        left = max(0.0, left - sum(given[name] - before[name] for name in given))
        # As Volcano: who has what it asks for, or gets no more, is served.
        hungry -= {n for n in hungry if given[n] >= caps[n] or given[n] == before[n]}
    return given
